"""Train: plan a request and start the plan, in this order.

1. The command line or the Python interface makes a TrainRequest (`planning/request.py`).
2. `plan` finds the target of the request and lets it plan: the target reads the files that the request names
   (`load/inputs.py`), decides what it leaves open (`planning/resolve.py`), and returns all steps of the run as values
   (`planning/plan.py`).
3. A dry run prints the plan. Otherwise `start` lets the same target carry out the steps (`targets/execute.py`), and
   returns the run, which `cli/running.py` follows until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from orch_node import lease
from orch_node.protocol.environment import FORCE_RESUME
from orch_node.protocol.outcome import REFUSED
from orch_node.protocol.record import DEFAULT_TARGET
from orch_node.standalone import facts

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.files import exclusive
from orchestrator.operations import queue, runs
from orchestrator.planning import sweep
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, TrainRequest, check_name, check_unsupported_options
from orchestrator.runs import store
from orchestrator.targets import registry
from orchestrator.targets.interface import RunHandle

RESUME_LOCK = ".resume.lock"  # in the folder of all runs, which an array of a thousand runs needs only once


def plan(request: TrainRequest, resume: Resume | None = None) -> Plan:
    """Plan a run from local files, without connecting to any host.

    The target gets the values of all variables; the plan records only what the user gave.

    Args:
        request: the request.
        resume: the unfinished run whose next attempt is planned, or None.

    Raises:
        PlanError: if the run is impossible, or the target does not support an option.
        RequestError: if ORCH_CPU_ISA, an option or a variable of --env is wrong.
    """
    target = registry.find_target(request.on)
    try:
        if os.environ.get(facts.CPU_ISA):
            facts.isa_variables()  # also if no rank runs on this machine
    except ValueError as error:
        raise RequestError(str(error), hint=f"Unset {facts.CPU_ISA}, or set a lower level.") from None
    if request.name is not None:
        check_name(request.name)
    check_unsupported_options(request, target.refuses)
    if request.array_sample is not None and not request.array:
        raise RequestError("--array-sample needs --array.", hint="Add --array KEY=VALUE,VALUE.")
    if request.array and target.name == DEFAULT_TARGET:
        return plan_array_on_hosts(request)
    file = Path(request.env_file) if request.env_file else None
    variables = load.environment(request.env, file, os.environ) if request.env or file else {}
    variables |= {FORCE_RESUME: "1"} if resume and resume.forces else {}
    environment = tuple(f"{name}={value}" for name, value in variables.items())
    planned = target.plan(replace(request, env=environment, env_file=None), resume)
    plan, *array = (
        replace(member, request=replace(member.request, env=request.env, env_file=request.env_file))
        for member in (planned, *planned.array)
    )
    return replace(plan, array=tuple(array), target=target)


def start(plan: Plan, base: Path, resumed: Sequence[store.Run] = ()) -> RunHandle:
    """Record a plan, start it or let its runs wait, and return the first run, which outlives this process.

    Args:
        plan: the plan of a run or of an array.
        base: the folder of all runs.
        resumed: the recorded runs whose next attempts are planned.

    Raises:
        OrchError: if a run cannot be started, or another command has resumed it.
    """
    with exclusive(base / RESUME_LOCK) if resumed else nullcontext():
        for run in resumed:
            now = store.load(run.folder)
            is_unchanged = now.record == run.record if run.state == store.LOST else now.has_ended
            if not is_unchanged or now.outcome != run.outcome:
                raise RequestError.about("resumed-run", run=now, arguments=store.cli_arguments(run.folder))
            if run.state in (lease.KILLED, store.LOST) and store.was_launched(run):
                runs.handle_of(run).stop()  # what the supervisor has left may hold the cores
        if plan.request.wait_for_cores:
            return queue.submit(plan, base)
        handles: list[RunHandle] = []
        for run, member in zip(resumed, plan.array or (plan,), strict=False):
            with runs.in_folder_of(run):
                handles.append(member.target.start(member, run.folder))
        return handles[0] if handles else plan.target.start(plan, base / plan.run.run_id)


def plan_array_on_hosts(request: TrainRequest) -> Plan:
    """Return the plan of an array on hosts, whose runs wait for free nodes: one, or the number in --nodes.

    Their nodes are decided when they start.
    """
    recipe = load.recipe(request.recipe, tuple(map(Path, request.recipe_path)), module=request.module)
    if isinstance(request.nodes, str):
        excluded = load.hosts_outside(request.inventory, request.nodes, request.exclude)
        request = replace(request, nodes=None, exclude=",".join(excluded) or None)
    request = replace(request, nodes=1 if request.nodes is None else request.nodes, wait_for_cores=True)
    members = load.array_members(request.array, request.array_sample)
    requests = [sweep.request_of(request, member, own_script=recipe.own_script) for member in members]
    first = plan(requests[0]).run
    plans = [plan(single, sweep.member_of(first, number)) for number, single in enumerate(requests)]
    labelled = sweep.label_plans(list(zip(members, plans, strict=True)))
    return replace(labelled[0], array=labelled, max_active=sweep.max_active_runs(request.array))


def shares_folder(plan: Plan) -> bool:
    """Return whether a script of the user works in the current folder of this machine, as its other runs do."""
    resolved = plan.resolved
    return resolved.recipe.own_script and not plan.project and all(node.local for node in resolved.all_nodes)


def unfinished_run(plan: Plan, base: Path) -> str:
    """Return the id of the newest run of the planned script in the folder `base` if it is unfinished, or ''."""
    runs = [
        run
        for run in store.recorded(base).runs
        if (run.record.recipe, run.origin.directory) == (plan.run.recipe, str(Path.cwd())) and run.state != REFUSED
    ]
    return runs[-1].id if runs and store.can_resume(runs[-1]) else ""
