"""`orch fetch`: what a run has written on its node, brought to this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator import runs
from orchestrator.backends.local import Local
from orchestrator.backends.ssh import Ssh
from orchestrator.card import Whereabouts
from orchestrator.collect import Collected, Listener, collect
from orchestrator.errors import RequestError
from orchestrator.operations.find import find
from orchestrator.operations.reach import backend_for
from orchestrator.plan import Target
from orchestrator.runs import Run

RECORD = "fetched.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`source`: another folder than the run's output; `only`: patterns of paths below it."""

    run: str
    inventory: str | None = None
    node: str | None = None
    source: str | None = None
    to: Path | None = None
    only: tuple[str, ...] = ()


def fetch(base: Path, wanted: Wanted, listener: Listener) -> Collected:
    """Raises RequestError for what there cannot be, ExecuteError for what fails."""
    lives, folder = find(base, wanted.run, wanted.inventory)
    run = runs.load(folder)
    source = wanted.source or run.plan["output_dir"]
    if source is None:
        raise RequestError(
            f"{run.plan['recipe']} is a script of its own: where it writes, only it knows.",
            hint="Name the folder on the node: --from /path/of/its/output.",
        )
    found = collected(lives, run, wanted, source, listener)
    if wanted.only and not found.files:
        raise RequestError(f"Nothing in {source} matches {' or '.join(wanted.only)}.")
    files = [asdict(entry) for entry in found.files]
    record = {"schema": 1, "from": source, "folder": str(found.folder), "files": files}
    runs.write_json(run.folder / RECORD, record)
    return found


def collected(
    lives: Whereabouts, run: Run, wanted: Wanted, source: str, listener: Listener
) -> Collected:
    """From the node, or from the volume of a run on Kubernetes."""
    if lives.kube is not None:
        from orchestrator.operations.kube.files import reader

        if wanted.node:
            raise RequestError("--node is for nodes behind SSH: all pods share one volume.")
        target = wanted.to or run.folder.absolute() / "output"
        with reader(lives) as pod:
            return collect(pod, source, target, only=wanted.only, listener=listener)
    remote = backend_for(target_of(lives, wanted.node))
    target = wanted.to or default_target(run, wanted.node, remote, source)
    try:
        return collect(remote, source, target, only=wanted.only, listener=listener)
    finally:
        remote.close()


def target_of(whereabouts: Whereabouts, node: str | None) -> Target:
    """node0, or another node of the run. Raises RequestError."""
    names = [target.node for target in whereabouts.nodes]
    name = node or names[0]
    if name not in names:
        raise RequestError(
            f"Run {whereabouts.run_id} has no node '{name}'.", hint=f"It has {', '.join(names)}."
        )
    return whereabouts.nodes[names.index(name)]


def default_target(run: Run, node: str | None, remote: Local | Ssh, source: str) -> Path:
    """The run's folder here. What is here already stays where it is, and is only hashed."""
    if isinstance(remote, Local):
        return Path(source)
    return run.folder.absolute() / (f"output-{node}" if node else "output")
