"""`orch fetch`: what a run has written on its node, brought to this machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator import runs
from orchestrator.backends.local import Local
from orchestrator.backends.ssh import Ssh
from orchestrator.collect import Collected, Listener, collect
from orchestrator.errors import RequestError
from orchestrator.runs import Run

RECORD = "fetched.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`source`: another folder than the run's output; `only`: patterns of paths below it."""

    run: str
    node: str | None = None
    source: str | None = None
    to: Path | None = None
    only: tuple[str, ...] = ()


def fetch(base: Path, wanted: Wanted, listener: Listener) -> Collected:
    """Raises RequestError for what there cannot be, ExecuteError for what fails."""
    run = runs.find(base, wanted.run)
    source = wanted.source or run.plan["output_dir"]
    if source is None:
        raise RequestError(
            f"{run.plan['recipe']} is a script of its own: where it writes, only it knows.",
            hint="Name the folder on the node: --from /path/of/its/output.",
        )
    remote = remote_of(run, wanted.node)
    target = wanted.to or default_target(run, wanted.node, remote, source)
    found = collect(remote, source, target, only=wanted.only, listener=listener)
    if wanted.only and not found.files:
        raise RequestError(f"Nothing in {source} matches {' or '.join(wanted.only)}.")
    files = [asdict(entry) for entry in found.files]
    record = {"schema": 1, "from": source, "folder": str(target), "files": files}
    (run.folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return found


def remote_of(run: Run, node: str | None) -> Local | Ssh:
    """node0, or another node of the run, which is reached alike."""
    names = list(dict.fromkeys(place["node"] for place in run.plan["layout"]))
    via = run.plan["node0"]["via"]
    name = node or run.plan["node0"]["node"]
    if name not in names:
        raise RequestError(f"Run {run.id} has no node '{name}'.", hint=f"It has {names}.")
    return Ssh(name, via[2]) if via else Local()


def default_target(run: Run, node: str | None, remote: Local | Ssh, source: str) -> Path:
    """The run's folder here. What is here already stays where it is, and is only hashed."""
    if isinstance(remote, Local):
        return Path(source)
    return run.folder.absolute() / (f"output-{node}" if node else "output")
