"""Start what pods run as processes of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orch_node.streams import without_marks

from tests.support.waiting import wait_until

NODE = Path(__file__).parents[2] / "train" / "node.py"
FAIL_ON_RANK_1 = """
import time, torch.distributed as dist
if dist.get_rank() == 1:
    raise ValueError("rank 1 has had enough")
time.sleep(60)
"""


def write_pod_config(folder: Path, **changes: Any) -> Path:
    """Write the configuration of a pod with two ranks, and return its path."""
    value = {
        "run_dir": str(folder / "data" / "runs" / "r"),
        "pods": 1,
        "word": "worker",
        "ppn": 2,
        "cpus": 64.0,
        "threads": 1,
        "backend": "gloo",
        "backend_module": "",
        "timeout_seconds": 60.0,
        "env": {"TOKENIZERS_PARALLELISM": "false"},
        "preload": ["libiomp5.so"],
        "stack": "current",
        "needs_bf16": False,
        "stall_timeout": 60.0,
    } | changes
    path = folder / "pod.json"
    path.write_text(json.dumps(value))
    return path


def pod_command(mode: str, config: Path, *script: str) -> list[str]:
    return [sys.executable, str(NODE), "pod", mode, str(config), "--", *script]


def run_pod(mode: str, config: Path, *script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a pod to its end."""
    command, environment = pod_command(mode, config, *script), os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def parse_events(output: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the events of these kinds in a pod's output, by default of all kinds."""
    values = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    events = [value for value in values if "event" in value]
    return [event for event in events if not kinds or event["event"] in kinds]


def rank_lines(output: str, rank: int) -> list[str]:
    """Return the lines of a rank in a pod's output."""
    return re.findall(rf"^\[{rank}\] (.*)$", without_marks(output), re.MULTILINE)


def await_in_logs(condition: Callable[[], bool], *logs: Path) -> None:
    """Wait for a condition, or fail with the ends of the logs."""
    try:
        wait_until(condition, "the condition")
    except AssertionError as error:
        texts = [log.read_text(errors="replace")[-2000:] for log in logs if log.exists()]
        raise AssertionError(texts) from error
