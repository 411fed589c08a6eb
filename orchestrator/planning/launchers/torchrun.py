"""torchrun on every node, with its rendezvous on node0; `node.py torchrun` starts them all."""

from __future__ import annotations

from orchestrator.model.command import Command
from orchestrator.planning.launchers.job import Job, Launch

# Different from the ports of the ranks' own rendezvous (run_files.master_port), and below Linux's ephemeral range.
PORT_OFFSET = 500


def launch(job: Job) -> Launch:
    """Return the command of torchrun, which needs no hostfile: it reads layout.json, also after a restart."""
    host = f"[{job.address}]" if ":" in job.address else job.address
    argv = (
        job.ranks[0],
        f"{job.train}/node.py",
        "torchrun",
        job.run_dir,
        f"--meet={host}:{job.port + PORT_OFFSET}",
        *([f"--max-restarts={job.restarts}"] if job.restarts else []),
        *([f"--min-nodes={job.min_nodes}"] if job.min_nodes else []),
        "--",
        *job.ranks,
    )
    return Launch(command=Command(argv=argv), summary="one torchrun on each node, c10d on node0")
