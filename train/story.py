"""What the supervisor writes down: events.jsonl, the stacks of ranks, outcome.json."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from stacks import where

NO_RANK = -1
STOP = "stop"  # a file in the run's folder: it was asked to stop


class Story:
    """events.jsonl holds the ranks' events and, as those of rank -1, the supervisor's own."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.events = (run_dir / "events.jsonl").open("ab", buffering=0)
        self.words = (run_dir / "launcher.log").open("ab", buffering=0)

    def tell(self, event: str, **fields: object) -> None:
        record = {"event": event, "rank": NO_RANK, "time": round(time.time(), 3), **fields}
        self.events.write(json.dumps(record).encode() + b"\n")

    def keep_stacks(self, answers: dict[int, dict[str, Any]]) -> dict[str, str]:
        """A file for each rank; -> rank -> where it stands, in one line."""
        folder = self.run_dir / "stacks"
        folder.mkdir(exist_ok=True)
        for rank, answer in answers.items():
            kernel = "".join(f"{name}: {text}\n" for name, text in answer["kernel"].items())
            (folder / f"rank-{rank}.txt").write_text(f"{answer['stack']}\n{kernel}")
        return {str(rank): where(answer) for rank, answer in sorted(answers.items())}

    def end(self, outcome: dict[str, Any]) -> None:
        self.tell("finished", state=outcome["state"])
        write_atomically(self.run_dir / "outcome.json", {"schema": 1, **outcome})


def parse_event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and {"event", "rank"} <= event.keys() else None


def write_atomically(path: Path, value: object) -> None:
    staging = path.with_name(path.name + ".tmp")
    staging.write_text(json.dumps(value, indent=1) + "\n")
    staging.replace(path)
