"""One job array for all runs of a request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.planning.plan import Plan, SubmitScript
from orchestrator.planning.site import Site
from orchestrator.planning.sweep import Member, label_plans
from orchestrator.targets.batch.location import JOB_NAME_PREFIX
from orchestrator.targets.batch.plan import PlannedRun, login_of, send_steps
from orchestrator.targets.batch.script import job_options, render_array


def plan_array(site: Site, runs: Sequence[tuple[Member, PlannedRun]], limit: int | None = None) -> Plan:
    """Return the plan of an array: one script, each task of which is one of the runs.

    Args:
        site: the id, the folder and the shared files of the array.
        runs: the values of each run, and what was planned for it.
        limit: the number of runs that may be active at once; None for no limit.
    """
    plans = label_plans([(member, planned.plan) for member, planned in runs])
    members = [replace(planned, plan=plan) for plan, (_, planned) in zip(plans, runs, strict=True)]
    first = members[0]
    name = f"{JOB_NAME_PREFIX}{site.run_id}"
    options = job_options(name, first.config, first.batch, tasks=len(runs), max_active=limit)
    labels = [member.label for member, _ in runs]
    step = SubmitScript(
        node=login_of(first.batch),
        run_dir=site.run_dir,
        script=render_array(labels, [(member.plan, member.config) for member in members], first.batch, options),
        name=name,
        options=options,
        program=first.batch.system.submitter,
    )
    sent = dict.fromkeys(step for member in members for step in send_steps(member, site))
    return replace(plans[0], steps=(*sent, step), array=plans)
