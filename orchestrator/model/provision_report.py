"""Reports of what provisioning did, or would do, on each node."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.model.decision import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference between the actual and the desired state."""

    what: str
    is_: str
    should: str


@dataclass(slots=True, kw_only=True)
class NodeReport:
    """The report of one node."""

    node: str
    ok: int = 0  # number of tasks
    changed: int = 0  # number of tasks
    failed: int = 0  # number of tasks and problems
    seconds: float = 0.0  # total time of its tasks
    findings: list[Finding] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    @property
    def problem(self) -> str:
        return "; ".join(finding.message for finding in self.findings)

    @property
    def hint(self) -> str:
        return " ".join(dict.fromkeys(finding.hint for finding in self.findings if finding.hint))

    def fail(self, finding: Finding) -> None:
        """Add a failure."""
        self.failed += 1
        self.findings.append(finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A model or data set on the nodes.

    Attributes:
        kind: `model` or `data`.
        name: the name on the hub, the URL or the path on the controller.
        revision: the commit on the hub, otherwise empty.
        path: the file or folder on the nodes; relative to orch's folder until the nodes are known.
        files: the number of files.
        size: their size in bytes.
    """

    kind: str
    name: str
    revision: str = ""
    path: str
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of all nodes."""

    cluster: str
    check: bool
    state: str  # done, drift, failed or stopped
    seconds: float
    log: str
    nodes: tuple[NodeReport, ...]
    synced: tuple[Synced, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        # With --dry-run, differences are a failure, so that a script can wait until there are none.
        return {"done": 0, "drift": 1, "failed": 1, "stopped": 130}[self.state]
