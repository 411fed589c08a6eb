"""How ranks are started: (nodes, layout, hostfile, rank command) -> Launch, one file each."""

from __future__ import annotations

from orchestrator.launchers.mpirun import Launch, launch

LAUNCHERS = {"mpirun": launch}

__all__ = ["LAUNCHERS", "Launch"]
