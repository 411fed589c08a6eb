"""torchrun on every node, with its rendezvous on node0. `node.py torchrun` starts them all."""

from __future__ import annotations

from orchestrator.launchers.job import Job, Launch
from orchestrator.model.command import Command

# Away from the ports that the ranks themselves meet at (run_files.master_port), and still below
# Linux' ephemeral range.
PORTS_APART = 500


def launch(job: Job) -> Launch:
    """No hostfile: it reads layout.json, also when a restart has changed it."""
    host = f"[{job.address}]" if ":" in job.address else job.address
    argv = (
        job.nodes[0].python,
        f"{job.train}/node.py",
        "torchrun",
        job.run_dir,
        f"--meet={host}:{job.port + PORTS_APART}",
        *([f"--max-restarts={job.restarts}"] if job.restarts else []),
        *([f"--min-nodes={job.min_nodes}"] if job.min_nodes else []),
        "--",
        *job.ranks,
    )
    return Launch(command=Command(argv=argv), summary="one torchrun on each node, c10d on node0")
