"""Several runs that one job array of Slurm holds: one for each of the values asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from orchestrator.errors import PlanError
from orchestrator.model.decision import Decision
from orchestrator.planning.plan import Plan, SubmitScript
from orchestrator.planning.request import TrainRequest
from orchestrator.targets.slurm.plan import Decided, SlurmSite, login_of, sent_first
from orchestrator.targets.slurm.script import render_array

MOST = 1000  # runs, as most sites have MaxArraySize
Pairs = tuple[tuple[str, str], ...]


def combinations(asked: Iterable[str]) -> list[Pairs]:
    """`KEY=V1,V2` ... -> the pairs of each run, the last key's values first. Raises PlanError."""
    axes = []
    for text in asked:
        name, _, values = text.partition("=")
        found = tuple(dict.fromkeys(values.split(",")))
        if not name or "" in found:
            raise PlanError(f"--array {text}: expected KEY=VALUE,VALUE,...")
        axes.append([(name, value) for value in found])
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise PlanError("--array names a setting twice.", hint="All its values after one name.")
    made = list(product(*axes))
    if len(made) > MOST:
        raise PlanError(f"--array asks for {len(made)} runs; {MOST} are the most.")
    return made


def request_of(request: TrainRequest, pairs: Pairs, *, own_script: bool) -> TrainRequest:
    """The request of one run: its settings, or the arguments of a script of one's own."""
    words = tuple(f"{name}={value}" for name, value in pairs)
    if own_script:
        return replace(request, script_args=(*request.script_args, *(f"--{one}" for one in words)))
    return replace(request, settings=(*request.settings, *words))


def site_of(site: SlurmSite, number: int) -> SlurmSite:
    """Where the run of this number lives: a run like others, beside them."""
    return replace(
        site, run_id=f"{site.run_id}-{number}", run_dir=f"{site.run_dir}-{number}"
    )  # fmt: skip


def plan_array(site: SlurmSite, runs: Sequence[tuple[Pairs, Decided]]) -> Plan:
    """One script for all; each task of the array is one of the runs."""
    labels = [" ".join(f"{name}={value}" for name, value in pairs) for pairs, _ in runs]
    made = [
        labelled(one, f"{label} ({number + 1} of {len(runs)})")
        for number, (label, (_, one)) in enumerate(zip(labels, runs, strict=True))
    ]
    at = login_of(made[0].slurm)
    text = render_array(f"orch-{site.run_id}", labels, [(one.plan, one.config) for one in made],
                        made[0].slurm)  # fmt: skip
    step = SubmitScript(at=at, run_dir=site.run_dir, script=text)
    sent = dict.fromkeys(step for one in made for step in sent_first(one, site))
    plans = tuple(one.plan for one in made)
    return replace(plans[0], steps=(*sent, step), array=plans)


def labelled(one: Decided, label: str) -> Decided:
    first, *rest = one.plan.run.decisions
    run = replace(one.plan.run, decisions=(first, Decision(topic="array", value=label), *rest))
    return replace(one, plan=replace(one.plan, run=run))
