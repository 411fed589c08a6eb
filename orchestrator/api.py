"""The Python interface, importable as `orch`. It calls the same operations as the command line."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from orch_node.protocol.events import event_fields, event_name
from orch_node.protocol.layout import AUTO
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, RequestError, did_you_mean
from orchestrator.errors import OrchError as OrchError
from orchestrator.operations import provision as provisioning
from orchestrator.operations import resume as resuming
from orchestrator.operations import train as training
from orchestrator.operations.nodes import rows
from orchestrator.operations.output import LogLine, RanksOutput, check_shown, describe_end
from orchestrator.operations.runs import fetch, find, handle_of, list_recorded_runs
from orchestrator.operations.submit import read_results, write_call
from orchestrator.planning.recorded_request import parse
from orchestrator.planning.request import choose_python, parse_nodes, parse_ppn
from orchestrator.report.live import Screen
from orchestrator.runs import store
from orchestrator.runs.fetch import FetchListener
from orchestrator.targets import registry
from orchestrator.targets.interface import FetchRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from orchestrator.operations.provision import Report
    from orchestrator.runs.fetch import Collected
    from orchestrator.runs.outcome import CleanupReport, RunOutcome
    from orchestrator.runs.rows import RunRow
    from orchestrator.targets.interface import RunHandle

RUNS_DIR = "runs"


class TrainOptions(TypedDict, total=False):
    """Options of `train` and `submit`, named like those of the command line; `orch train --help-all` explains them.

    Type checkers and editors read them here; the options themselves are declared in TrainRequest.
    """

    inventory: str | Path
    nodes: int | str | None
    ppn: int | str | None
    env: Mapping[str, object] | None
    on: str | None
    target_options: Mapping[str, Any] | None
    runs_dir: str | Path
    module: bool
    name: str
    preset: str
    array: Sequence[str]
    array_sample: int
    recipe_path: Sequence[str | Path]
    project: str
    project_limit: int
    requirements: str
    extra: Sequence[str]
    packages: Sequence[str]
    env_file: str | Path
    stack: str
    python: str | Path
    venv: str | Path
    exclude: str
    wait_for_cores: bool
    launcher: str
    mpi: str
    accelerate_config: str
    backend: str
    ccl_workers: int
    fabric: str
    precision: str
    allow_slow_bf16: bool
    ipex: bool
    kernels: str
    stall_timeout: float
    max_restarts: int
    spare_nodes: int
    min_nodes: int
    stop_on_nan: bool
    image: str
    image_options: Sequence[str]


class RunError(OrchError):
    """An error for a run that has ended without success.

    Attributes:
        outcome: the outcome of the run.
    """

    default_hint = "The method logs() of the run has the output of all ranks."

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(describe_end(outcome), hint=" ".join(item.hint for item in outcome.explanations))
        self.outcome = outcome


@dataclass(frozen=True)
class RunEvent:
    """An event of a run, as in its events.jsonl.

    Attributes:
        name: what has happened, such as `joined`, `progress` or `result`.
        rank: the rank that reports it; -1 for the supervisor.
        time: seconds since the epoch.
        fields: the other fields of the event.
    """

    name: str
    rank: int
    time: float
    fields: Mapping[str, Any]


class Run:
    """A run on any target. It does not depend on this process."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self._finishing = threading.Lock()

    def __repr__(self) -> str:
        return f"<orch.{type(self).__name__} {self.id}: {self.state}>"

    @property
    def id(self) -> str:
        """Return the id of the run, which `orch attach` and `orch.run` take."""
        return self._handle.record.run_id

    @property
    def folder(self) -> Path:
        """Return the folder of the run on this machine."""
        return self._handle.folder

    @property
    def state(self) -> str:
        """Return the last known state, such as `running`, `done` or `failed`, without a query of the nodes."""
        return store.load(self.folder).state

    def events(self) -> Iterator[RunEvent]:
        """Yield the events of the run, from its beginning until it has ended.

        Raises:
            OrchError: if the nodes cannot be reached.
        """
        for event in self._handle.events():
            yield RunEvent(event_name(event), event.rank, event.time, event_fields(event))

    def wait(self, show: str | None = None) -> RunOutcome:
        """Wait until the run has ended and return its outcome, whether it succeeded or failed.

        Args:
            show: print the progress of the run, the output of a rank such as `0`, of `all` or of `none`, and why the
                run did not succeed.

        Raises:
            OrchError: if the nodes cannot be reached.
        """
        if show is None:
            for _ in self._handle.events():
                pass
            return self._finish()
        check_shown(show, len(self._handle.record.layout))
        screen = Screen(of_ranks=show)
        self._handle.notify = screen.note
        lines = RanksOutput(self._handle, screen)
        screen.begin([])
        try:
            lines.follow()
            outcome = self._finish()
            lines.end()
            if outcome.state != "done":
                error = RunError(outcome)
                screen.note(f"{error}\nhint: {error.hint}")
        finally:
            screen.end()
        return outcome

    def _finish(self) -> RunOutcome:
        with self._finishing:
            return self._handle.finish()

    @property
    def result(self) -> dict[str, Any]:
        """Wait for the run and return the figures that its script reported; empty if it reported none.

        Raises:
            RunError: if the run did not succeed.
        """
        outcome = self.wait()
        if outcome.state != "done":
            raise RunError(outcome)
        return dict(outcome.result.figures) if outcome.result else {}

    def logs(self, rank: int | None = None, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the lines that a rank or all ranks have printed.

        Raises:
            OrchError: if the run does not have the rank, or lines may be missing.
        """
        return self._handle.logs(rank=rank, follow=follow)

    def fetch(
        self,
        destination: str | Path | None = None,
        *,
        patterns: Sequence[str] = (),
        source: str = "",
        node: str | None = None,
    ) -> Collected:
        """Copy files that the run has written to this machine, and verify their hashes.

        Args:
            destination: a folder; by default output/ in the run's folder.
            patterns: patterns of the files to copy; all files if empty.
            source: a folder on the nodes, relative to the run's output folder, which is the default.
            node: the only node to copy from; by default all nodes.

        Raises:
            OrchError: if no file matches, or files cannot be read or written.
        """
        folder = Path(destination) if destination else None
        request = FetchRequest(source=source, node=node, destination=folder, patterns=tuple_of("patterns", patterns))
        return fetch(self._handle, request, FetchListener())

    def stop(self) -> CleanupReport:
        """End all processes of the run on all its nodes."""
        return self._handle.stop()


def train(
    recipe: str | Path,
    *,
    args: Sequence[object] = (),
    settings: Mapping[str, object] | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Start a recipe or a script, and return the run as soon as it is started.

    Args:
        recipe: the name of a recipe, or the path of a script.
        args: arguments of the script.
        settings: settings of the recipe.
        options: the options of `orch train`, such as `inventory`, `nodes` and `ppn`. `env` has environment variables
            of the ranks, no secrets; `target_options` has the options of the target `on`, such as
            `{"slurm": ["partition=cpu"]}`.

    Raises:
        OrchError: if the request is wrong, or the run cannot be started. Its `hint` advises.
    """
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in values.keys() - TrainOptions.__annotations__:
        hint = did_you_mean(name, TrainOptions.__annotations__)
        raise RequestError(f"orch.train has no option {name!r}.", hint=hint)
    values |= {
        "recipe": recipe,
        "script_args": [*map(str, tuple_of("args", args))],
        "settings": entries("settings", settings or {}),
        "env": entries("env", options.get("env") or {}),
        "ppn": parse_ppn(values.get("ppn", AUTO)),
        "python": choose_python(values.pop("python", None), values.pop("venv", None)),
    }
    if target_options := values.pop("target_options", None):
        values["options"] = target_options
    try:
        request = parse(values, lambda target: registry.find_target(target).options, "orch.train")
    except ProtocolError as error:
        raise RequestError(f"{error}", hint="`orch train --help-all` explains the options.") from None
    plan = training.plan(request)
    if plan.array:
        raise RequestError("orch.train starts one run, not an array.", hint="Call it once for each setting.")
    return Run(training.start(plan, Path(request.runs_dir).absolute()))


def tuple_of(name: str, value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple.

    Raises:
        RequestError: if it is a text.
    """
    if isinstance(value, str):
        raise RequestError(f"{name} is a text, not a list: {value!r}.", hint=f"Write {name}={value.split()}.")
    return tuple(value)


def entries(option: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return settings or environment variables as --set and --env take them.

    Raises:
        RequestError: if a value is of another type, such as `os.environ.get(NAME)` of a missing variable.
    """
    if not isinstance(values, Mapping):
        raise RequestError(f"{option} is {values!r}, not a dictionary.", hint=f"Write {option}={{NAME: VALUE}}.")
    for name, value in values.items():
        if not isinstance(value, str | Real | Path):
            raise RequestError.about("value-of-option", option=option, name=name, value=value)
    lowers = option == "settings"  # true and false, as recipes take them
    return tuple(
        f"{name}={str(value).lower() if lowers and isinstance(value, bool) else value}"
        for name, value in values.items()
    )


class Job(Run):
    """The run of a function.

    Attributes:
        futures: a future of each rank, with the function's result.
    """

    futures: tuple[Future[Any], ...]

    def __init__(self, handle: RunHandle) -> None:
        super().__init__(handle)
        self.futures = tuple(Future() for _ in handle.record.layout)
        for future in self.futures:
            future.set_running_or_notify_cancel()  # a rank cannot be cancelled, so neither can its future
        threading.Thread(target=self._collect, daemon=True).start()

    def results(self, timeout: float | None = None) -> list[Any]:
        """Return the results of all ranks.

        Args:
            timeout: seconds to wait for each.

        Raises:
            RunError: if the run did not succeed.
            TimeoutError: if it has not ended.
        """
        return [future.result(timeout) for future in self.futures]

    def _collect(self) -> None:
        try:
            handle = handle_of(store.load(self.folder))  # a connection is for one thread
            for _ in handle.events():
                pass
            outcome = self._finish()
            if outcome.state != "done":
                raise RunError(outcome)
            for future, result in zip(self.futures, read_results(handle), strict=True):
                future.set_result(result)
        except Exception as error:  # the caller of a future gets it
            for future in self.futures:
                future.set_exception(error)


def submit(
    function: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[TrainOptions],
) -> Job:
    """Call a function on every rank, in a process group, and return a job with a future of each rank.

    The function is sent as pickled by cloudpickle, together with what it uses from its own module. Its result
    consists of numbers, text, lists, tuples and dicts, because objects that nodes have pickled are not loaded here.

    Args:
        function: the function.
        args: its arguments.
        kwargs: its arguments by name.
        options: the options of `train`, such as `inventory`, `nodes` and `ppn`.

    Raises:
        OrchError: if the function cannot be pickled, or the run cannot be started.
    """
    if not callable(function):
        raise RequestError(f"{function!r} is not a function.", hint="Pass the function, without (), and its arguments.")
    if options.get("wait_for_cores"):
        raise RequestError.about("cores-of-function")
    for name in options.keys() & {"args", "module", "project"}:
        raise RequestError.about("argument-of-submit", name=name)
    with tempfile.TemporaryDirectory(prefix="orch-submit-") as folder:
        script = write_call(Path(folder), function, args, kwargs or {})
        options["project"] = folder
        run = train(script, **options)
    return Job(run._handle)


def resume(
    run_id: str = "last",
    *,
    nodes: int | str | None = None,
    exclude: str | None = None,
    ppn: int | str | None = None,
    precision: str | None = None,
    max_restarts: int | None = None,
    env: Mapping[str, str] | None = None,
    wait_for_cores: bool = False,
    code: bool = False,
    force: bool = False,
    runs_dir: str | Path = RUNS_DIR,
    notify: Callable[[str], None] | None = None,
) -> Run:
    """Start the next attempt of a run that failed, was stopped, preempted or lost, and return the run.

    The working directory of this process is that of the first attempt while the attempt is started.

    Args:
        run_id: its id; `last` is the newest unfinished run.
        nodes: the number of nodes, or a pattern of their names, in place of the recorded one.
        exclude: the nodes to exclude.
        ppn: ranks per node.
        precision: the precision of a recipe.
        max_restarts: restarts after a failure.
        env: further environment variables of the ranks.
        wait_for_cores: wait until other runs have released their cores.
        code: send the files of the project that have changed.
        force: continue a recipe's checkpoint although the data, the model or the settings have changed.
        runs_dir: the folder of run records on this machine.
        notify: receives what differs from the last attempt as lines.

    Raises:
        OrchError: if there is no such run, it cannot be resumed, or it cannot be started.
    """
    changes = resuming.Changes(
        nodes=None if nodes is None else parse_nodes(str(nodes)),
        exclude=exclude,
        ppn=None if ppn is None else str(ppn),
        precision=precision,
        max_restarts=max_restarts,
        env=entries("env", env or {}),
        wait_for_cores=wait_for_cores,
        code=code,
        force=force,
    )
    base, listener = Path(runs_dir).absolute(), notify or (lambda line: None)
    runs = resuming.find_runs(base, str(run_id), listener, force=force)
    if len(runs) > 1:
        raise RequestError("orch.resume starts one run, not an array.", hint="Call it once for each of its runs.")
    return Run(training.start(resuming.plan(runs[0], changes, base, listener), base, runs))


def run(run_id: str = "last", *, inventory: str | None = None, runs_dir: str | Path = RUNS_DIR) -> Run:
    """Return a recorded run.

    Args:
        run_id: its id; `last` is the newest run.
        inventory: search on the nodes of this inventory, which finds runs started on any machine.
        runs_dir: the folder of run records on this machine.

    Raises:
        OrchError: if there is no such run.
    """
    return Run(find(Path(runs_dir), str(run_id), inventory))


def runs(*, inventory: str | None = None, runs_dir: str | Path = RUNS_DIR) -> list[RunRow]:
    """Return the runs recorded on this machine, or on the nodes of an inventory, oldest first.

    Raises:
        OrchError: if the inventory cannot be read, or a node of it does not respond.
    """
    listing = list_recorded_runs(Path(runs_dir), inventory)
    if listing.unreachable:
        raise ExecuteError.about("no-response", nodes=", ".join(listing.unreachable))
    return list(listing.rows)


def nodes(inventory: str | Path) -> list[dict[str, Any]]:
    """Return what `orch provision` has recorded about the nodes of an inventory: a dictionary for each.

    Values that are not recorded are None.

    Raises:
        OrchError: if the inventory cannot be read.
    """
    return rows(str(inventory))


def provision(
    inventory: str | Path,
    *,
    stack: str = "current",
    data: Sequence[str | Path] = (),
    notify: Callable[[str], None] | None = None,
) -> Report:
    """Set up all nodes of an inventory and verify them.

    Args:
        inventory: the name or path of an Ansible inventory.
        stack: the name of the stack.
        data: data sets of a hub, a URL or this machine to copy to the nodes.
        notify: receives the decisions as lines.

    Raises:
        OrchError: if the request is wrong, or a node fails.
    """
    sources = tuple(map(str, tuple_of("data", data)))
    request = provisioning.ProvisionRequest(inventory=str(inventory), stack=stack, data=sources)
    listener = provisioning.Listener(note=notify) if notify else provisioning.Listener()
    report = provisioning.provision(request, listener, {})
    if report.exit_code:
        failed = [node for node in report.nodes if node.failed]
        problems = "; ".join(f"{node.node}: {node.problem}" for node in failed)
        hints = dict.fromkeys(node.hint for node in failed if node.hint)
        hint = " ".join([*hints, f"Ansible's output: {report.log}"])
        raise ExecuteError(f"{problems or 'Provisioning failed'}.", hint=hint)
    return report
