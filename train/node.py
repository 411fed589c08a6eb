"""Run a program of orch on a node: `python node.py SUBCOMMAND [ARGS...]`.

The folder of this file is removed from sys.path and train/lib comes last, so that the modules of a
user's script take precedence and only orch_node and orch_training are added.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

LIB = str(Path(__file__).resolve().parent / "lib")
# Subcommand -> a module, whose main(argv) is called, or module:function; they return an exit code.
SUBCOMMANDS = {
    "rank": "orch_node.rank.wrapper",
    "no-listen": "orch_node.rank.process:main_without_listening",
    "run-script": "orch_node.rank.main",
    "exec": "orch_node.rank.command",
    "find-module": "orch_node.rank.script",
    "packages": "orch_node.standalone.facts:main_packages",
    "contained-rank": "orch_node.rank.container",
    "supervise": "orch_node.supervisor.supervisor",
    "torchrun": "orch_node.supervisor.torchrun",
    "torchrun-on-node": "orch_node.supervisor.torchrun:main_on_node",
    "agent": "orch_node.agent.agent",
    "cleanup": "orch_node.agent.cleanup",
    "prepare-attempt": "orch_node.agent.run_folders:main_prepare_attempt",
    "runs": "orch_node.agent.run_folders:main_runs",
    "usage": "orch_node.agent.core_claims",
    "verify": "orch_node.verify",
    "check-fabric": "orch_node.fabric",
    "ping-pong": "orch_node.fabric:main_of_rank",
    "pod": "orch_node.pod.main",
    "pod-rank": "orch_node.pod.torchrun_rank",
    "store": "orch_node.content_store",
    "run-files": "orch_node.run_files",
    "share-files": "orch_node.supervisor.file_sharing",
    "job": "orch_node.batch.job",
    "job-agent": "orch_node.batch.agents",
    "slurm-ranks": "orch_node.batch.slurm",
    "pbs": "orch_node.batch.pbs",
}


def main(argv: list[str]) -> int:
    """Run a subcommand; return its exit code."""
    if not argv or argv[0] not in SUBCOMMANDS:
        name = argv[0] if argv else "without a subcommand"
        print(f"this node has another version of orch, which does not know `node.py {name}`", file=sys.stderr)
        return 2
    sys.path[:] = [*sys.path[1:], LIB]
    module, _, function = SUBCOMMANDS[argv[0]].partition(":")
    return int(getattr(importlib.import_module(module), function or "main")(argv[1:]) or 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
