"""The members of an array: the runs that one request starts, each with its own values. Pure."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from random import Random

from orch_node.protocol.record import RunRecord

from orchestrator.errors import PlanError
from orchestrator.model.decision import ARRAY_MEMBER, Decision
from orchestrator.model.printable import masked
from orchestrator.planning.plan import Plan
from orchestrator.planning.request import Resume, RunPaths, TrainRequest

MAX_RUNS = 1000  # Most sites keep Slurm's default MaxArraySize of 1001.
LIMIT = re.compile(r"%([0-9]+)\Z", re.ASCII)  # The limit at the end of an argument, written as for `sbatch --array`.
PLANNED = "planned"  # the state of a run that has not started
SAMPLE_SEED = 0  # The same command draws the same sample.


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A run of an array.

    Attributes:
        values: its values by name; empty for a run from a line of a file.
        arguments: the arguments in its line of a file; empty otherwise.
    """

    values: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return its values as a user writes them, without secrets."""
        assignments = [f"{name}={value}" for name, value in self.values]
        return shlex.join(masked(self.arguments)) or " ".join(masked(assignments))


def max_active_runs(arguments: Iterable[str]) -> int | None:
    """Return how many runs may be active at once according to `KEY=V1,V2%N`, or None for no limit.

    Raises:
        PlanError: if a limit is 0, or more than one is given.
    """
    limits = [int(match[1]) for text in arguments if (match := LIMIT.search(text))]
    if len(limits) > 1 or 0 in limits:
        raise PlanError.about("active-runs")
    return limits[0] if limits else None


def without_limit(text: str) -> str:
    return LIMIT.sub("", text)


def combinations(arguments: Sequence[str], sample: int | None) -> list[Member]:
    """Return the runs for the combinations of `KEY=V1,V2` arguments; the last key varies fastest.

    Args:
        arguments: the keys with their values.
        sample: how many of them to draw, always the same ones, or None for all.

    Raises:
        PlanError: if an argument is malformed, a key is repeated, or there are too many or too few.
    """
    axes = dict(parse_axis(without_limit(text)) for text in arguments)
    if len(axes) < len(arguments):
        raise PlanError("--array names a setting twice.", hint="List all of its values after one name.")
    total = prod(map(len, axes.values()))
    numbers: Sequence[int] = range(total)
    if sample is not None:
        if not 0 < sample <= total:
            raise PlanError.about("array-sample", sample=sample, total=total)
        numbers = sorted(Random(SAMPLE_SEED).sample(numbers, sample))
    check_number(len(numbers))
    return [Member(values=combination(axes, number)) for number in numbers]


def parse_axis(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the key and the values of an argument."""
    name, _, values = text.partition("=")
    try:
        choices = tuple(dict.fromkeys(next(csv.reader([values], strict=True, skipinitialspace=True), ())))
    except csv.Error:
        choices = ()
    if not name or not choices or "" in choices:
        raise PlanError.about("array-axis", text=text)
    return name, choices


def combination(axes: dict[str, tuple[str, ...]], number: int) -> tuple[tuple[str, str], ...]:
    assignments = []
    for name, values in reversed(axes.items()):
        number, index = divmod(number, len(values))
        assignments.append((name, values[index]))
    return tuple(reversed(assignments))


def parse_lines(text: str, file: str) -> list[Member]:
    """Return a run for each line of a file of arguments; empty lines and comments are skipped.

    Raises:
        PlanError: if a line cannot be split into words, or the file has no or too many lines.
    """
    members = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            arguments = tuple(shlex.split(line, comments=True))
        except ValueError as error:
            raise PlanError(f"{file}, line {number}: {error}.", hint="Quote words as in a shell.") from None
        members += [Member(arguments=arguments)] if arguments else []
    if not members:
        raise PlanError(f"{file} has no lines of arguments.", hint="Write the arguments of one run in each line.")
    check_number(len(members))
    return members


def check_number(runs: int) -> None:
    """Raise PlanError if there are too many runs."""
    if runs > MAX_RUNS:
        raise PlanError.about("too-many-runs", runs=runs, limit=MAX_RUNS)


def request_of(request: TrainRequest, member: Member, *, own_script: bool) -> TrainRequest:
    """Return the request of one run.

    A recipe gets the values as settings. A user's own script gets them in place of `{NAME}` in its arguments; values
    that its arguments do not name are appended as `--NAME=VALUE`.
    """
    single = replace(request, array=(), array_sample=None)
    assignments = tuple(f"{name}={value}" for name, value in member.values)
    if not own_script:
        return replace(single, settings=(*request.settings, *assignments, *member.arguments))
    values, used = dict(member.values), set[str]()

    def substitute(match: re.Match[str]) -> str:
        used.add(match[1])
        return values.get(match[1], match[0])  # braces around other text stay

    arguments = [re.sub(r"\{([^{}]*)\}", substitute, argument) for argument in request.script_args]
    appended = [f"--{name}={value}" for name, value in member.values if name not in used]
    return replace(single, script_args=(*arguments, *appended, *member.arguments))


def run_paths_of(run_paths: RunPaths, number: int) -> RunPaths:
    """Return the paths of the run with this number: its folder is next to those of the other runs."""
    return replace(run_paths, run_id=f"{run_paths.run_id}-{number}", run_dir=f"{run_paths.run_dir}-{number}")


def member_of(array: RunRecord, number: int) -> Resume:
    """Return the run of an array with this number, whose first attempt is planned; its folder is next to the others.

    Args:
        array: the record of a run whose id and folder are those of the array.
        number: the number of the run, from 0.
    """
    record = replace(array, run_id=f"{array.run_id}-{number}", run_dir=f"{array.run_dir}-{number}")
    return Resume(record=record, state=PLANNED, attempt=1)


def label_plans(plans: Sequence[tuple[Member, Plan]]) -> tuple[Plan, ...]:
    """Return the plans of all members, each with its label and number among its decisions."""
    labels = [f"{member.label} ({number} of {len(plans)})" for number, (member, _) in enumerate(plans, 1)]
    return tuple(labelled(plan, label) for label, (_, plan) in zip(labels, plans, strict=True))


def labelled(plan: Plan, label: str) -> Plan:
    """Return the plan of a member with this label among its decisions."""
    first, *remaining = plan.run.decisions
    decisions = (first, Decision(topic=ARRAY_MEMBER, value=label), *remaining)
    return replace(plan, run=replace(plan.run, decisions=decisions))
