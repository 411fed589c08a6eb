"""Several runs that one job array of Slurm holds: one for each of the values asked for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from orchestrator.errors import PlanError
from orchestrator.model.decision import ALREADY_DONE, ARRAY_MEMBER, Decision
from orchestrator.planning.plan import Plan, SubmitScript
from orchestrator.planning.request import TrainRequest
from orchestrator.targets.slurm.plan import Decided, SlurmSite, login_of, sent_first
from orchestrator.targets.slurm.script import render_array

MOST = 1000  # runs, as most sites have MaxArraySize
AT_ONCE = re.compile(r"%([0-9]+)", re.ASCII)  # at the end, as `sbatch --array` has it
Pairs = tuple[tuple[str, str], ...]


def at_once(asked: Iterable[str]) -> int | None:
    """How many of the runs `KEY=V1,V2%N` lets go at once; None for all. Raises PlanError."""
    found = [int(match[1]) for text in asked if (match := limit_in(text))]
    if len(found) > 1 or 0 in found:
        raise PlanError(
            "--array: %N says once how many runs go at once, 1 or more.", hint="--array learning_rate=1e-5,3e-5,1e-4%2"
        )
    return found[0] if found else None


def limit_in(text: str) -> re.Match[str] | None:
    return AT_ONCE.fullmatch(text, text.rfind("%")) if "%" in text else None


def combinations(asked: Iterable[str]) -> list[Pairs]:
    """`KEY=V1,V2` ... -> the pairs of each run, the last key's values first. Raises PlanError."""
    axes = []
    for text in asked:
        limit = limit_in(text)
        name, _, values = text[: limit.start() if limit else None].partition("=")
        found = tuple(dict.fromkeys(values.split(",")))
        if not name or "" in found:
            raise PlanError(f"--array {text}: expected KEY=VALUE,VALUE,...", hint="--array learning_rate=1e-5,3e-5")
        axes.append([(name, value) for value in found])
    if len({axis[0][0] for axis in axes}) < len(axes):
        raise PlanError("--array names a setting twice.", hint="All its values after one name.")
    made = list(product(*axes))
    if len(made) > MOST:
        raise PlanError(
            f"--array asks for {len(made)} runs; {MOST} are the most.", hint="Give fewer values, or several commands."
        )
    return made


def request_of(request: TrainRequest, pairs: Pairs, *, own_script: bool) -> TrainRequest:
    """The request of one run: its settings, or the arguments of a script of one's own."""
    words = tuple(f"{name}={value}" for name, value in pairs)
    if own_script:
        return replace(request, script_args=(*request.script_args, *(f"--{one}" for one in words)))
    return replace(request, settings=(*request.settings, *words))


def site_of(site: SlurmSite, number: int) -> SlurmSite:
    """Where the run of this number lives: a run like others, beside them."""
    return replace(site, run_id=f"{site.run_id}-{number}", run_dir=f"{site.run_dir}-{number}")


def plan_array(
    site: SlurmSite,
    runs: Sequence[tuple[Pairs, Decided]],
    limit: int | None = None,
    done: Mapping[str, Pairs] | None = None,
) -> Plan:
    """Return one script for all runs; each task of the array is one of them.

    Args:
        site: where the runs live.
        runs: the settings of each, and what was decided for it.
        limit: as `at_once`.
        done: the runs of earlier arrays that are not repeated, by id.
    """
    labels = [label_of(pairs) for pairs, _ in runs]
    made = [
        labelled(one, f"{label} ({number + 1} of {len(runs)})")
        for number, (label, (_, one)) in enumerate(zip(labels, runs, strict=True))
    ]
    at = login_of(made[0].slurm)
    text = render_array(f"orch-{site.run_id}", labels, [(one.plan, one.config) for one in made], made[0].slurm, limit)
    step = SubmitScript(at=at, run_dir=site.run_dir, script=text)
    sent = dict.fromkeys(step for one in made for step in sent_first(one, site))
    plans = tuple(one.plan for one in made)
    skipped = tuple(
        Decision(topic=ALREADY_DONE, value=f"{run_id} {label_of(pairs)}", reason="--fresh trains it again")
        for run_id, pairs in (done or {}).items()
    )
    run = replace(plans[0].run, decisions=(*plans[0].run.decisions, *skipped))
    return replace(plans[0], run=run, steps=(*sent, step), array=plans)


def label_of(settings: Pairs) -> str:
    """Return the settings of a run as a user writes them."""
    return " ".join(f"{name}={value}" for name, value in settings)


def labelled(one: Decided, label: str) -> Decided:
    first, *rest = one.plan.run.decisions
    run = replace(one.plan.run, decisions=(first, Decision(topic=ARRAY_MEMBER, value=label), *rest))
    return replace(one, plan=replace(one.plan, run=run))
