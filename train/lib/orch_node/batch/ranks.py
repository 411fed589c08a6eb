"""Start the ranks of a job with srun: `node.py slurm-ranks RUN_DIR --pmi=NAME -- COMMAND`.

This is the launcher `srun`, on node0. Nodes and their numbers of ranks come from layout.json, which a
restart may have changed. The process becomes srun, with one task per rank in the layout's order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orch_node import whole_files
from orch_node.agent.containers import read_spec
from orch_node.batch.step_options import STEP, VARIABLES
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import PYXIS

# srun reads these variables of the job as --nodes, which contradicts the list of hosts.
NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
HOSTS = "srun-hosts"  # a line for each rank
# How ranks of MPI find each other, in the order of preference. Without it only ranks that do not
# use MPI can start.
PMI = ("pmi2", "pmix")
UNRELIABLE_PMI = ("pmix",)  # listed even if the library that it needs is not installed


def main(argv: list[str]) -> int:
    """Replace this process with srun; return an exit code if the arguments are wrong."""
    if len(argv) < 4 or not argv[1].startswith("--pmi=") or argv[2] != "--":
        print("usage: node.py slurm-ranks RUN_DIR --pmi=NAME -- COMMAND", file=sys.stderr)
        return 2
    run_dir, requested_pmi, command = Path(argv[0]), argv[1].partition("=")[2], argv[3:]
    layout = layouts.parse((run_dir / files.LAYOUT).read_text())
    whole_files.write(run_dir / HOSTS, "".join(f"{placement.node}\n" for placement in layout.ranks))
    for name in (*VARIABLES, *NODES):
        os.environ.pop(name, None)
    os.environ["SLURM_HOSTFILE"] = str(run_dir / HOSTS)
    srun = [
        *("srun", *STEP, f"--ntasks={layout.world_size}", "--distribution=arbitrary"),
        *("--unbuffered", "--job-name=orch-ranks"),
        f"--mpi={choose_pmi() if requested_pmi == 'auto' else requested_pmi}",
        *pyxis_options(run_dir),
    ]
    os.execvp("srun", [*srun, *command])
    raise AssertionError


def pyxis_options(run_dir: Path) -> list[str]:
    """Return the options of srun for a container of Pyxis, or none if the run does not use one.

    Raises:
        SystemExit: if this site has no Pyxis.
    """
    spec = read_spec(run_dir)
    if spec is None or spec.engine != PYXIS:
        return []
    help_text = subprocess.run(["srun", "--help"], capture_output=True, text=True)
    if "--container-image" not in help_text.stdout:
        sys.exit(
            f"error: {spec.image} needs Pyxis, but srun has no option --container-image here. "
            "Use an image of Apptainer instead: --image IMAGE.sif"
        )
    return [f"--container-image={spec.image}", *spec.options]


def choose_pmi() -> str:
    """Return the first plug-in that srun lists and that works, or none."""
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    listed_pmi = [name for name in PMI if name in (listed.stdout + listed.stderr).split()]
    return next((name for name in listed_pmi if name not in UNRELIABLE_PMI or works(name)), "none")


def works(name: str) -> bool:
    """Return whether srun can start a task with this plug-in."""
    command = ["srun", *STEP, "--nodes=1", "--ntasks=1", f"--mpi={name}", "true"]
    result = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    return result.returncode == 0
