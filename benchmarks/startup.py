"""Measure the time before the training: help, planning, and the start until the first step."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import arguments, interleaved, report, seconds

BIN = Path(sys.executable).parent
ORCH = str(BIN / "orch")
SCRIPT = """
import os, sys, time
import torch.distributed as dist
from pathlib import Path

if not dist.is_initialized():
    for name, variable in (("RANK", "PMI_RANK"), ("WORLD_SIZE", "PMI_SIZE")):
        os.environ[name] = os.environ[variable]
    dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(repr(time.time()))
"""


def main() -> None:
    repeats = arguments().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        help_and_plan(folder, repeats)
        first_step(folder, repeats)


def help_and_plan(folder: Path, repeats: int) -> None:
    cases = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "orch --help": [ORCH, "--help"],
        "orch train bert-qa --dry-run": [ORCH, "train", "bert-qa", "--dry-run"],
        "ansible-inventory --list": [str(BIN / "ansible-inventory"), "-i", "localhost,", "--list"],
    }
    measured = {name: lambda c=command: seconds(c, cwd=folder) for name, command in cases.items()}
    figures = interleaved(measured, max(repeats, 5))
    report("Before the training", "seconds", figures, "python -c pass")


def first_step(folder: Path, repeats: int) -> None:
    """Measure the time from the command to the first collective of the script, with 2 ranks on gloo."""
    by_hand = ["mpiexec.hydra", "-n", "2", sys.executable, "script.py", "mark"]
    orch = [ORCH, "train", "script.py", "--ppn", "2", "--backend", "gloo", "--", "mark"]
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "I_MPI_PIN_DOMAIN": "core",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }

    def to_mark(command: list[str]) -> float:
        began = time.time()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return float((folder / "mark").read_text()) - began

    figures = interleaved(
        {"mpiexec.hydra by hand": lambda: to_mark(by_hand), "orch train": lambda: to_mark(orch)}, repeats
    )
    report("To the first step", "seconds", figures, "mpiexec.hydra by hand")


if __name__ == "__main__":
    main()
