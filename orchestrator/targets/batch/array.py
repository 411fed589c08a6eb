"""The runs of one job array, one for each combination of the requested values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from orchestrator.errors import PlanError
from orchestrator.model.decision import ALREADY_DONE, ARRAY_MEMBER, Decision
from orchestrator.planning.plan import Plan, SubmitScript
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.site import Site
from orchestrator.targets.batch.location import JOB_NAME_PREFIX
from orchestrator.targets.batch.plan import PlannedRun, login_of, send_steps
from orchestrator.targets.batch.script import job_options, render_array

MAX_RUNS = 1000  # Most sites keep Slurm's default MaxArraySize of 1001.
LIMIT = re.compile(r"%([0-9]+)", re.ASCII)  # The limit at the end of an argument, written as for `sbatch --array`.
Assignments = tuple[tuple[str, str], ...]


def max_active_runs(arguments: Iterable[str]) -> int | None:
    """Return how many runs may be active at once according to `KEY=V1,V2%N`, or None for no limit.

    Raises:
        PlanError: if a limit is 0, or more than one is given.
    """
    limits = [int(match[1]) for text in arguments if (match := limit_in(text))]
    if len(limits) > 1 or 0 in limits:
        raise PlanError(
            "--array: the limit %N of active runs must be given only once, and be 1 or more.",
            hint="Example: --array learning_rate=1e-5,3e-5,1e-4%2",
        )
    return limits[0] if limits else None


def limit_in(text: str) -> re.Match[str] | None:
    """Return the match of the limit `%N` at the end of an argument, or None if it has none."""
    return LIMIT.fullmatch(text, text.rfind("%")) if "%" in text else None


def combinations(arguments: Iterable[str]) -> list[Assignments]:
    """Return the settings of each run for the arguments `KEY=V1,V2`; the last key varies fastest.

    Raises:
        PlanError: if an argument is malformed, a key is repeated, or there are too many runs.
    """
    axes = []
    for text in arguments:
        limit = limit_in(text)
        name, _, values = text[: limit.start() if limit else None].partition("=")
        choices = tuple(dict.fromkeys(values.split(",")))
        if not name or "" in choices:
            raise PlanError(
                f"--array {text}: expected KEY=VALUE,VALUE,...", hint="Example: --array learning_rate=1e-5,3e-5"
            )
        axes.append([(name, value) for value in choices])
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise PlanError("--array names a setting twice.", hint="List all of its values after one name.")
    members = list(product(*axes))
    if len(members) > MAX_RUNS:
        raise PlanError(
            f"--array requests {len(members)} runs; the limit is {MAX_RUNS}.",
            hint="Use fewer values, or several commands.",
        )
    return members


def request_of(request: TrainRequest, settings: Assignments, *, own_script: bool) -> TrainRequest:
    """Return the request of one run: with its settings, or with them as arguments of a user's script."""
    assignments = tuple(f"{name}={value}" for name, value in settings)
    if own_script:
        return replace(request, script_args=(*request.script_args, *(f"--{assignment}" for assignment in assignments)))
    return replace(request, settings=(*request.settings, *assignments))


def site_of(site: Site, number: int) -> Site:
    """Return the site of the run with this number: its folder is next to those of the other runs."""
    return replace(site, run_id=f"{site.run_id}-{number}", run_dir=f"{site.run_dir}-{number}")


def plan_array(
    site: Site,
    runs: Sequence[tuple[Assignments, PlannedRun]],
    limit: int | None = None,
    done: Mapping[str, Assignments] | None = None,
) -> Plan:
    """Return the plan of an array: one script, each task of which is one of the runs.

    Args:
        site: the id, the folder and the shared files of the array.
        runs: the settings of each run, and what was planned for it.
        limit: the number of runs that may be active at once; None for no limit.
        done: the settings of finished runs of earlier arrays, which are not repeated, by run id.
    """
    labels = [label_of(settings) for settings, _ in runs]
    members = [
        labelled(member, f"{label} ({number + 1} of {len(runs)})")
        for number, (label, (_, member)) in enumerate(zip(labels, runs, strict=True))
    ]
    first = members[0]
    name = f"{JOB_NAME_PREFIX}{site.run_id}"
    options = job_options(name, first.config, first.batch, tasks=len(runs), max_active=limit)
    step = SubmitScript(
        node=login_of(first.batch),
        run_dir=site.run_dir,
        script=render_array(labels, [(member.plan, member.config) for member in members], first.batch, options),
        name=name,
        options=options,
        program=first.batch.system.submitter,
    )
    sent = dict.fromkeys(step for member in members for step in send_steps(member, site))
    plans = tuple(member.plan for member in members)
    skipped = tuple(
        Decision(topic=ALREADY_DONE, value=f"{run_id} {label_of(settings)}", reason="--fresh trains it again")
        for run_id, settings in (done or {}).items()
    )
    run = replace(plans[0].run, decisions=(*plans[0].run.decisions, *skipped))
    return replace(plans[0], run=run, steps=(*sent, step), array=plans)


def label_of(settings: Assignments) -> str:
    """Return the settings of a run as a user writes them."""
    return " ".join(f"{name}={value}" for name, value in settings)


def labelled(member: PlannedRun, label: str) -> PlannedRun:
    """Return a run with its label and number among its decisions."""
    first, *remaining = member.plan.run.decisions
    run = replace(member.plan.run, decisions=(first, Decision(topic=ARRAY_MEMBER, value=label), *remaining))
    return replace(member, plan=replace(member.plan, run=run))
