"""Plan and start training runs, and runs that prepare data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin, get_type_hints

from orch_node.protocol.environment import FORCE_RESUME
from orch_node.protocol.outcome import REFUSED
from orch_node.protocol.record import DEFAULT_TARGET
from orch_node.standalone import facts

from orchestrator import load
from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.hostlist import NodeCount, NodePattern
from orchestrator.operations import queue
from orchestrator.planning import sweep
from orchestrator.planning.plan import Plan
from orchestrator.planning.refusal import check_refused
from orchestrator.planning.request import Resume, TargetOptions, check_name
from orchestrator.planning.request import TrainRequest as TrainRequest
from orchestrator.planning.request import parse_nodes as parse_nodes
from orchestrator.planning.request import parse_ppn as parse_ppn
from orchestrator.runs import store
from orchestrator.targets import registry

if TYPE_CHECKING:
    from orchestrator.targets.interface import RunHandle, Target

LOCAL = "local"  # the inventory that is this machine
DATA_SETTINGS = ("kind", "data_dir", "input_file", "input_files")  # settings that `orch data prepare` makes


def plan(request: TrainRequest, resume: Resume | None = None) -> Plan:
    """Plan a run from local files, without connecting to any host.

    Args:
        request: the request.
        resume: the unfinished run whose next attempt is planned, or None.

    Raises:
        PlanError: if the run is impossible, or the target does not support an option.
        RequestError: if ORCH_CPU_ISA or a variable of --env is wrong.
    """
    check_cpu_isa()
    if request.name is not None:
        check_name(request.name)
    target = registry.find_target(request.on)
    check_refused(request, target.refuses)
    if request.array_sample is not None and not request.array:
        raise RequestError("--array-sample needs --array.", hint="Add --array KEY=VALUE,VALUE.")
    if request.array and target.name == DEFAULT_TARGET:
        return plan_on_hosts(request, target)
    complete = with_environment(request)
    if resume and resume.forces:
        complete = replace(complete, env=(*complete.env, f"{FORCE_RESUME}=1"))
    return recording(request, target.plan(complete, resume))


def plan_on_hosts(request: TrainRequest, target: Target) -> Plan:
    """Return the plan of an array on hosts, whose runs wait for free nodes: one, or the number in --nodes.

    Their nodes are decided when they start.
    """
    recipe = load.recipe(request.recipe, tuple(map(Path, request.recipe_path)), module=request.module)
    if isinstance(request.nodes, NodePattern):
        excluded = load.hosts_outside(request.inventory, request.nodes, request.exclude)
        request = replace(request, nodes=None, exclude=",".join(excluded) or None)
    request = replace(request, nodes=request.nodes or NodeCount(1), wait_for_cores=True)
    members = load.array_members(request.array, request.array_sample)
    requests = [sweep.request_of(request, member, own_script=recipe.own_script) for member in members]
    first = target.plan(with_environment(requests[0])).run
    plans = [
        recording(single, target.plan(with_environment(single), sweep.member_of(first, number)))
        for number, single in enumerate(requests)
    ]
    labelled = sweep.label_plans(list(zip(members, plans, strict=True)))
    return replace(labelled[0], array=labelled, max_active=sweep.max_active_runs(request.array))


def recording(request: TrainRequest, plan: Plan) -> Plan:
    """Return the plan that records variables as the user gave them, without values from the shell or from a file."""
    recorded = replace(plan.origin.request, env=request.env, env_file=request.env_file)
    members = tuple(recording(request, member) for member in plan.array)
    return replace(plan, origin=replace(plan.origin, request=recorded), array=members)


def choose_python(python: str | Path | None, venv: str | Path | None) -> str | None:
    """Return the interpreter of --python, or that of the virtual environment of --venv.

    Raises:
        RequestError: if both are given.
    """
    if python and venv:
        raise RequestError(f"--python {python} and --venv {venv} exclude each other.", hint="Omit one of them.")
    path = f"{venv}/bin/python" if venv else python
    return None if path is None else str(path).replace("//", "/")


def options_of_target(target_name: str | None, values: Mapping[str, Any]) -> tuple[TargetOptions, ...]:
    """Return the options of the target that --on names, from their values by name.

    Raises:
        RequestError: if there is no such target, or it does not have an option, or a list is expected.
    """
    if not values:
        return ()
    kind = registry.find_target(target_name).options
    if kind is None:
        raise RequestError(
            f"target_options: a run without `on` has no option {next(iter(values))!r}.",
            hint="Add `on`, or omit target_options.",
        )
    types = {name: type_ for name, type_ in get_type_hints(kind).items() if get_origin(type_) is not ClassVar}
    options = {}
    for name, value in values.items():
        if name not in types:
            hint = did_you_mean(name, types)
            raise RequestError(f"target_options: {target_name} has no option {name!r}.", hint=hint)
        is_path = value is not None and Path in get_args(types[name])
        options[name] = Path(value) if is_path else tuple_of(name, value, get_origin(types[name]) is tuple)
    return (kind(**options),)


def tuple_of(name: str, value: Any, is_list: bool = True) -> Any:
    """Return the value of an argument, a list as a tuple.

    Raises:
        RequestError: if the argument takes a list, and the value is a text.
    """
    if is_list and isinstance(value, str):
        raise RequestError(f"{name} is a text, not a list: {value!r}.", hint=f"Write {name}={value.split()}.")
    return tuple(value) if is_list else value


def with_environment(request: TrainRequest) -> TrainRequest:
    """Return the request with the values of all variables in `env`, and without a file.

    Raises:
        RequestError: if a variable is wrong.
    """
    file = Path(request.env_file) if request.env_file else None
    variables = load.environment(request.env, file, os.environ)
    return replace(request, env=tuple(f"{name}={value}" for name, value in variables.items()), env_file=None)


def check_cpu_isa() -> None:
    """Raise RequestError if ORCH_CPU_ISA is unknown, even if no rank runs on this machine."""
    try:
        facts.isa_variables()
    except ValueError as error:
        raise RequestError(str(error), hint=f"Unset {facts.CPU_ISA}, or set a lower level.") from None


def unfinished_run(plan: Plan, base: Path) -> str:
    """Return the id of the newest run of the planned script in the folder `base` if it is unfinished, or ''."""
    runs = [
        run
        for run in store.recorded(base).runs
        if (run.record.recipe, run.origin.directory) == (plan.run.recipe, str(Path.cwd())) and run.state != REFUSED
    ]
    return runs[-1].id if runs and store.can_resume(runs[-1]) else ""


def start(plan: Plan, folder: Path) -> RunHandle:
    """Record the plan, start it or let it wait for free nodes, and return the run, which outlives this process."""
    if plan.origin.request.wait_for_cores:
        return queue.submit(plan, folder.parent)
    return registry.target_of(plan.run).start(plan, folder)


def plan_data(request: TrainRequest, *, kind: str, inputs: Sequence[Path], out: Path) -> Plan:
    """Plan a run of the recipe bert-data.

    Paths on this machine are made absolute; paths on other nodes stay as they are.

    Args:
        request: a request for the recipe.
        kind: the kind of the input: text or wikipedia.
        inputs: one file of this machine, or paths on the nodes.
        out: the output folder.

    Raises:
        RequestError: if a setting contradicts the arguments.
    """
    for setting in request.settings:
        if setting.partition("=")[0] in DATA_SETTINGS:
            raise RequestError(
                f"--set {setting}: `orch data prepare` makes this setting.", hint="Use KIND, FILE... and --out instead."
            )
    is_local = request.inventory == LOCAL
    settings = (f"kind={kind}", f"data_dir={out.absolute() if is_local else out}", *request.settings)
    if len(inputs) == 1 and inputs[0].is_file():
        return plan(replace(request, settings=(f"input_file={inputs[0]}", *settings)))
    paths = [str(path.absolute() if is_local else path) for path in inputs]
    # A setting has one value. It replaces input_file, and all paths follow as arguments.
    settings = (f"input_files={paths[0]}", *settings)
    return plan(replace(request, settings=settings, script_args=("--input_files", *paths)))
