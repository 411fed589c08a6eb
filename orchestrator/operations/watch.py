"""A run that is being watched; it lives on without that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import runs
from orchestrator.backends.ssh import Ssh
from orchestrator.card import Whereabouts, whereabouts
from orchestrator.errors import ExecuteError
from orchestrator.mirror import Mirror, Patient
from orchestrator.operations.find import find
from orchestrator.operations.reach import backend_for
from orchestrator.plan import Target
from orchestrator.report.outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from orchestrator.operations.kube.watch import KubeWatch


def ignore(line: str) -> None:
    pass


class Watch:
    """Follows a run into its folder here. `tell` gets what is to be said of the connection."""

    def __init__(
        self, where: Whereabouts, folder: Path, tell: Callable[[str], None] = ignore
    ) -> None:
        self.where = where
        self.folder = folder
        self.tell = tell
        node0 = backend_for(where.node0)
        self.source: runs.Source = runs.Here(folder)
        if isinstance(node0, Ssh):
            mirror = Mirror(node0, where.run_dir, folder)
            self.source = Patient(mirror, where.node0.node, lambda line: self.tell(line))

    def started(self) -> None:
        """Wait until the supervisor has taken the run over. Raises ExecuteError."""
        runs.await_start(self.folder, self.source)

    def events(self) -> Iterator[dict[str, Any]]:
        """Events of the run, from its beginning until it has ended."""
        yield from runs.follow(self.folder, self.source)

    def stop(self) -> None:
        """Ask the run's supervisor to stop all ranks, and wait until it has."""
        runs.stop(self.folder, self.source)

    def finish(self) -> Outcome:
        """How the run ended; logs and results are here then, and `tell` says which are not."""
        for target in self.where.nodes:
            try:
                self.take(target)
            except ExecuteError as error:
                self.tell(f"nothing more from {target.node}: {error.message}")
        return outcome_of(runs.load(self.folder))

    def take(self, target: Target) -> None:
        """What a node has of the run: node0 the results, every node the logs of its ranks."""
        backend = backend_for(target)
        if not isinstance(backend, Ssh):
            return
        mirror = Mirror(backend, self.where.run_dir, self.folder)
        try:
            if target == self.where.node0:
                mirror.finish(runs.load(self.folder).plan["output_dir"])
                mirror.look_for_supervisor()
            mirror.take_logs()
        finally:
            backend.close()


def watch_of(
    where: Whereabouts, folder: Path, tell: Callable[[str], None] = ignore
) -> Watch | KubeWatch:
    """To follow a run, wherever it lives."""
    if where.kube is None:
        return Watch(where, folder, tell)
    from orchestrator.operations.kube.watch import KubeWatch

    return KubeWatch(where, folder, tell)


def renewed(base: Path, name: str, inventory: str | None, tell: Callable[[str], None]) -> runs.Run:
    """A run, as its nodes know it now if it was not seen to end; `tell` says which did not answer.

    Raises RequestError.
    """
    folder = find(base, name, inventory)[1] if inventory else runs.find(base, name).folder
    run = runs.load(folder)
    if run.outcome is None and (run.plan["node0"]["via"] or "kube" in run.plan):
        watch_of(whereabouts(run.plan), folder, tell).finish()
    return runs.load(folder)
