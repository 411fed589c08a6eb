"""Measure orch on a real Slurm in containers: the time to a job's first step, and the time to submit an array.

The first is compared with srun, the second with sbatch.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from measure import arguments, interleaved, report

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.slurm.site import USER, Site, orch_command, slurm_site  # noqa: E402
from tests.support.images import run_program  # noqa: E402

SCRIPT = """
import os, sys, time
import torch.distributed as dist
from pathlib import Path

if not dist.is_initialized():
    os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(repr(time.time()))
"""
TASKS = 100
BY_HAND = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive
touch began
export MASTER_ADDR=$(hostname -i) MASTER_PORT=29511 OMP_NUM_THREADS=1
exec srun {sys.executable} script.py mark
"""


def main() -> None:
    repeats = arguments().repeats
    image = run_program(str(ROOT / "tests/slurm/image")).strip().splitlines()[-1]
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with slurm_site(Path(name), image) as site:
            figures = interleaved({"srun python": lambda: by_hand(site), "orch train": lambda: by_orch(site)}, repeats)
            arrays = interleaved({"sbatch": lambda: array_by_hand(site), "orch train": lambda: array(site)}, repeats)
    report("From the start of a job to its first step", "seconds", figures, "srun python")
    report(f"Submission of an array of {TASKS} tasks", "seconds", arrays, "sbatch")


def by_hand(site: Site) -> float:
    (site.home / "script.py").write_text(SCRIPT)
    (site.home / "by-hand.sh").write_text(BY_HAND)
    site.stdout_of("sbatch", "--wait", "by-hand.sh")
    return marked(site) - (site.home / "began").stat().st_mtime


def by_orch(site: Site) -> float:
    """Return the seconds from the job's first file, its settings, to the first step."""
    options = ("--on", "slurm", "--nodes", "2", "--ppn", "1", "--backend", "gloo")
    site.orch("train", "script.py", *options, "--", f"/home/{USER}/mark")
    newest = max((site.home / "runs").iterdir(), key=lambda path: path.name)
    return marked(site) - (newest / "job.json").stat().st_mtime


def array_by_hand(site: Site) -> float:
    (site.home / "by-hand.sh").write_text(BY_HAND)
    return submission(site, "sbatch", "--hold", f"--array=0-{TASKS - 1}", "by-hand.sh")


def array(site: Site) -> float:
    values = ",".join(map(str, range(TASKS)))
    options = ("--on", "slurm", "--nodes", "2", "--slurm", "hold", "--detach", "--array", f"x={values}")
    return submission(site, *orch_command("train", "script.py", *options))


def submission(site: Site, *command: str) -> float:
    """Return the seconds of a command that submits jobs, which are held and then cancelled."""
    began = time.perf_counter()
    site.stdout_of(*command)
    seconds = time.perf_counter() - began
    site.stdout_of("scancel", "--user", USER)
    return seconds


def marked(site: Site) -> float:
    return float((site.home / "mark").read_text())


if __name__ == "__main__":
    main()
