"""Starts the ranks of a job by srun: `node.py slurm-ranks RUN_DIR --pmi=NAME -- COMMAND`.

The launcher `srun` of a run on node0. Nodes and their numbers of ranks come from layout.json, also
when a restart has changed it. It becomes srun: one task for each rank, in the layout's order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orch_node import whole_files
from orch_node.agent.containers import read_spec
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import PYXIS
from orch_node.slurm.words import STEP, VARIABLES

# What the job has; srun takes it for --nodes, and the lines of its hosts say another number.
NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
HOSTS = "srun-hosts"  # a line for each rank
# What tells ranks of each other, the first that the site has; without one, ranks that need MPI
# cannot start, and all others can.
PMI = ("pmi2", "pmix")
TRIED = ("pmix",)  # listed also where the library that it needs is not installed


def main(argv: list[str]) -> int:
    if len(argv) < 4 or not argv[1].startswith("--pmi=") or argv[2] != "--":
        print("usage: node.py slurm-ranks RUN_DIR --pmi=NAME -- COMMAND", file=sys.stderr)
        return 2
    run_dir, asked, command = Path(argv[0]), argv[1].partition("=")[2], argv[3:]
    layout = layouts.parse((run_dir / files.LAYOUT).read_text())
    whole_files.write(run_dir / HOSTS, "".join(f"{one.node}\n" for one in layout.ranks))
    for name in (*VARIABLES, *NODES):
        os.environ.pop(name, None)
    os.environ["SLURM_HOSTFILE"] = str(run_dir / HOSTS)
    words = [
        *("srun", *STEP, f"--ntasks={layout.world_size}", "--distribution=arbitrary"),
        *("--unbuffered", "--job-name=orch-ranks"),
        f"--mpi={pmi() if asked == 'auto' else asked}",
        *in_image(run_dir),
    ]
    os.execvp("srun", [*words, *command])
    raise AssertionError


def in_image(run_dir: Path) -> list[str]:
    """The words of Pyxis, if it holds the ranks. A site without the plug-in is told."""
    spec = read_spec(run_dir)
    if spec is None or spec.engine != PYXIS:
        return []
    helped = subprocess.run(["srun", "--help"], capture_output=True, text=True)
    if "--container-image" not in helped.stdout:
        sys.exit(
            f"error: {spec.image} needs Pyxis, and srun here has no --container-image. Without "
            "that plug-in take an image of Apptainer: --container IMAGE.sif"
        )
    return [f"--container-image={spec.image}", *spec.options]


def pmi() -> str:
    """What `srun --mpi=list` has, and what works."""
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    known = [name for name in PMI if name in (listed.stdout + listed.stderr).split()]
    return next((name for name in known if name not in TRIED or works(name)), "none")


def works(name: str) -> bool:
    trial = ["srun", *STEP, "--nodes=1", "--ntasks=1", f"--mpi={name}", "true"]
    done = subprocess.run(trial, capture_output=True, stdin=subprocess.DEVNULL)
    return done.returncode == 0
