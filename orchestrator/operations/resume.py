"""Resume unfinished runs: plan and start the next attempt of a recorded run, in its folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orch_node.protocol.events import Launched
from orch_node.protocol.outcome import DONE, REFUSED
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.files import sha256
from orchestrator.model.decision import array_values
from orchestrator.model.hosts import Nodes
from orchestrator.model.printable import MASK, counted, mask
from orchestrator.operations import runs, train
from orchestrator.planning import recorded_request, sweep
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest, flag, parse_ppn
from orchestrator.runs import queued, store
from orchestrator.runs.store import Run
from orchestrator.targets import registry
from orchestrator.targets.interface import Notify

REQUESTED = ("nodes", "exclude", "precision", "max_restarts")  # fields of a request that a resumed run may change
BATCH_CHANGES = "unless the script uses ORCH_PLANNED_WORLD_SIZE={}, its global batch and its schedule change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of `orch resume` to a recorded request; None keeps the recorded value.

    Attributes:
        nodes: the value of --nodes.
        exclude: the value of --exclude.
        ppn: the value of --ppn: a number or auto.
        precision: the value of --precision.
        max_restarts: the value of --max-restarts.
        env: further variables of the ranks.
        wait_for_cores: whether to wait until other runs have released their cores.
        code: whether to send the files of the project that have changed.
        force: whether to continue although data or settings have changed, or without the files of the last node0.
        without_files: whether to continue without the files of the last node0.
    """

    nodes: Nodes | None = None
    exclude: str | None = None
    ppn: str | None = None
    precision: str | None = None
    max_restarts: int | None = None
    env: tuple[str, ...] = ()
    wait_for_cores: bool = False
    code: bool = False
    force: bool = False
    without_files: bool = False

    def apply(self, request: TrainRequest) -> TrainRequest:
        """Return the request with these changes."""
        fields = {name: value for name in REQUESTED if (value := getattr(self, name)) is not None}
        ppn = request.ppn if self.ppn is None else parse_ppn(self.ppn)
        names = {variable.partition("=")[0] for variable in self.env}
        env = tuple(variable for variable in request.env if variable.partition("=")[0] not in names)
        waits = request.wait_for_cores or self.wait_for_cores
        return replace(request, ppn=ppn, env=(*env, *self.env), wait_for_cores=waits, **fields)


def find_runs(base: Path, name: str, notify: Notify, *, force: bool = False) -> list[Run]:
    """Return the run of an id, the unfinished runs of an array's id, or the newest unfinished run for `last`.

    Args:
        base: the folder of all runs.
        name: the id, or `last`.
        notify: called with each warning.
        force: whether a run whose node0 does not respond may be resumed.

    Raises:
        RequestError: if there is no such run, or it cannot be resumed.
    """
    problems = runs.refresh_live(base)
    for run_id, problem in problems.items():
        notify(f"{run_id}: {problem}")
    if name == "last":
        recorded = store.recorded(base).runs
        unfinished = [run for run in recorded if store.can_resume(run) or (run.id in problems and loss_of(run))]
        if not unfinished:
            raise RequestError.about("no-unfinished-run", base=base)
        name = unfinished[-1].id
    if members := store.members(base, name, notify):
        selected = [run for run in members if store.can_resume(run)]
        if not selected:
            check_unfinished(members[-1])
        return selected
    run = runs.find_refreshed(base, name, None, notify)
    if problem := loss_of(run):
        if not force:
            raise RequestError.about("lost-run", run=run, problem=problem, arguments=store.cli_arguments(run.folder))
        run = replace(run, state=store.LOST)
    check_unfinished(run)
    return [run]


def loss_of(run: Run) -> str:
    """Return why node0 of a running run on hosts over SSH cannot be reached, or ''."""
    if run.state == "running" and run.record.node0.via and not run.record.location:
        try:
            runs.handle_of(run).refresh()
        except ConnectionLost as error:
            return error.message.removesuffix(".")
    return ""


def limit_of(members: list[Run]) -> int | None:
    """Return how many runs of an array on hosts may be active at once, or None for no limit."""
    queue = queued.read_state(members[0].folder.parent / members[0].id.rpartition("-")[0])
    return queue.limit if queue else None


def check_unfinished(run: Run) -> None:
    """Raise RequestError unless a run ended early and its request is recorded here."""
    if run.state == DONE:
        raise RequestError(f"{run.id} is done: there is nothing to resume.", hint="`orch train` starts a new run.")
    if run.state not in (*store.UNFINISHED, REFUSED):
        raise RequestError.about("running-run", run=run, arguments=store.cli_arguments(run.folder))
    if not run.origin.request:
        raise RequestError.about("request-elsewhere", run=run)


def plan(run: Run, changes: Changes, base: Path, notify: Notify, recorded: TrainRequest | None = None) -> Plan:
    """Return the plan of the next attempt of a run.

    Args:
        run: the run.
        changes: what differs from its request.
        base: the folder of all runs.
        notify: called with what differs from the last attempt.
        recorded: its request with its secrets; by default as its record has it.

    Raises:
        OrchError: if the run cannot be resumed like this.
    """
    if runs.is_local(run.record) and Path(run.record.run_dir).resolve() != run.folder.resolve():
        raise RequestError.about("copied-run", run=run)
    recorded = recorded or request_of(run)
    request = replace(changes.apply(recorded), runs_dir=base)
    check_secrets(run, request)
    launches = {event.attempt: event.ranks for event in run.events() if isinstance(event, Launched)}
    attempt, first_ranks = max(launches, default=0) + 1, launches.get(1, 0)
    ranks_per_node = {placement.local_world_size for placement in run.record.layout}
    planned_request = request
    if attempt > 1 and changes.ppn is None and request.ppn is None and len(ranks_per_node) == 1:
        planned_request = replace(request, ppn=ranks_per_node.pop())
    resume = Resume(
        record=run.record,
        state=run.state,
        attempt=attempt,
        first_ranks=first_ranks,
        project=run.origin.project,
        sends_code=changes.code,
        forces=changes.force,
        without_files=changes.force or changes.without_files,
    )
    with runs.in_folder_of(run):
        planned = train.plan(planned_request, resume)
        planned = replace(planned, request=request)
        for line in differences(run, recorded, request, planned):
            notify(line)
    ranks = len(planned.run.layout)
    if planned.resolved.recipe.own_script and first_ranks and ranks not in (0, first_ranks):
        changed = f"changed: {counted(ranks, 'rank')}, {first_ranks} at the first start"
        notify(f"{changed}; {BATCH_CHANGES.format(first_ranks)}")
    label = array_values(run.record.decisions)
    return sweep.labelled(planned, label) if label else planned


def check_secrets(run: Run, request: TrainRequest) -> None:
    """Check that a request has the secrets that its record does not have.

    Raises:
        RequestError: if one is masked.
    """
    for variable in request.env:
        if MASK in variable:
            command, name = f"orch resume {store.cli_arguments(run.folder)}", variable.partition("=")[0]
            raise RequestError.about("masked-variable", run=run, command=command, name=name)
    if any(MASK in argument for argument in (*request.settings, *request.script_args)):
        raise RequestError.about("masked-argument", run=run)
    for package in request.packages:
        if MASK in package:
            raise RequestError.about("masked-package", run=run, package=package)


def request_of(run: Run) -> TrainRequest:
    """Return the recorded request of a run.

    Raises:
        ExecuteError: if it is damaged, or of another version of orch.
    """
    try:
        return recorded_request.parse(run.origin.request, lambda target: registry.find_target(target).options)
    except ProtocolError as error:
        raise ExecuteError(f"{run.id} cannot be resumed: {error}", hint="`orch train` starts a new run.") from None


def differences(run: Run, recorded: TrainRequest, request: TrainRequest, planned: Plan) -> Iterator[str]:
    """Yield what differs from the last attempt of a run: options, the code of a script that runs in place, software."""
    for name in (*REQUESTED, "ppn", "env"):
        before, now = getattr(recorded, name), getattr(request, name)
        if before != now:
            yield mask(f"changed: {flag(name)} {shown(now)} (was {shown(before)})", planned.secrets)
    script = planned.resolved.recipe.script_file
    if script and planned.project is None and run.origin.scripts:
        if sha256(Path(script)) != run.origin.scripts.sha256:
            yield f"changed: {script} differs from the one that the run was started with"
        else:
            yield f"unchanged: {script}"
    if run.origin.fingerprints and not planned.fingerprints.keys() <= run.origin.fingerprints.keys():
        changed_nodes = [names for key, names in planned.fingerprints.items() if key not in run.origin.fingerprints]
        yield f"changed: the packages of {', '.join(changed_nodes)} are not those of the last attempt"


def shown(value: object) -> str:
    """Return the value of an option for a message."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "the default" if value is None else str(value)
