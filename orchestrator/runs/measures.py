"""The measurements of a run's ranks, read from RUNS/<id>/ranks/*.metrics.jsonl and the events, and its scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from orch_node import atomic_write
from orch_node.protocol import values
from orch_node.protocol.events import LAST_TIME, Event, Progress, Result, UnreadableEvent
from orch_node.protocol.outcome import REFUSED

from orchestrator.runs.store import Run

MAX_GAP_SECONDS = 0.5  # between the samples of one process; the next one of the same rank takes longer to start


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A line written by orch_node/rank/metrics.py, which documents the fields; times in seconds, sizes in bytes."""

    time: float
    seconds: float
    step: float
    steps: int
    step_seconds: float | None = None
    step_seconds_max: float | None = None
    work_seconds: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    rss_bytes: float = 0.0
    gpu_bytes: float | None = None
    cpu_seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Return the mean rate of steps."""
        return self.steps / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasures:
    """The measurements of one rank, with its node and its samples in the order of time."""

    rank: int
    node: str
    threads: int
    samples: tuple[Sample, ...]

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return sum(sample.steps for sample in self.samples)

    @property
    def step_seconds(self) -> float | None:
        """Return the mean duration of all steps that were timed."""
        return weighted((s.step_seconds, s.steps) for s in self.samples)

    @property
    def longest_step(self) -> float | None:
        """Return the duration of the longest step in seconds."""
        return max((s.step_seconds_max for s in self.samples if s.step_seconds_max), default=None)

    @property
    def work_seconds(self) -> float | None:
        """Return the mean part of a step outside backward(), which depends on this rank alone."""
        return weighted((s.work_seconds, s.steps) for s in self.samples)

    @property
    def samples_per_second(self) -> float | None:
        """Return the mean rate from the first to the last step, or None if the script does not report it."""
        return weighted((stretch.samples_per_second, stretch.seconds) for stretch in self.stretches())

    @property
    def steps_per_second(self) -> float | None:
        """Return the mean rate of steps from the first to the last step."""
        return weighted((stretch.steps_per_second, stretch.seconds) for stretch in self.stretches())

    def stretches(self) -> list[Sample]:
        """Return samples of whole steps, in which the rank trained.

        A step may take longer than a sample, so samples without a step are added to the next sample with a
        step. Scripts count what they have trained after the step: what a sample without a step counts belongs to the
        step before it. The timed duration of the steps is exact, and replaces the duration of the samples if the two
        differ by no more than the duration of a sample. After a gap between samples, the rank has started again.
        """
        stretches: list[Sample] = []
        waited, ended = None, 0.0  # seconds since the last step, or None before the first; the end of the last sample
        for sample in self.samples:
            if abs(sample.time - sample.seconds - ended) > MAX_GAP_SECONDS:
                waited = None
            ended = sample.time
            trained = None if sample.samples_per_second is None else sample.samples_per_second * sample.seconds
            if sample.steps:
                seconds, waited = sample.seconds + (waited or 0.0), 0.0
                timed = (sample.step_seconds or 0.0) * sample.steps
                if timed > 0 and abs(timed - seconds) <= sample.seconds:
                    seconds = timed
                rate = None if trained is None else trained / seconds
                stretches.append(replace(sample, seconds=seconds, samples_per_second=rate))
            elif waited is not None:
                waited += sample.seconds
                last = stretches[-1]
                rate = (last.samples_per_second or 0.0) + trained / last.seconds if trained else last.samples_per_second
                stretches[-1] = replace(last, samples_per_second=rate)
        return stretches

    @property
    def peak_rss(self) -> float:
        """Return the largest resident memory in bytes."""
        return max((sample.rss_bytes for sample in self.samples), default=0.0)

    @property
    def cores_used(self) -> float | None:
        """Return the CPU seconds used per second."""
        seconds = sum(sample.seconds for sample in self.samples)
        return sum(sample.cpu_seconds for sample in self.samples) / seconds if seconds else None

    @property
    def last_loss(self) -> float | None:
        """Return the last reported loss."""
        return next((s.loss for s in reversed(self.samples) if s.loss is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measurements of a run.

    Attributes:
        began: the time of the first event, or of the creation of the run if there are no events.
        ranks: the measurements of each rank.
        loss: the loss as the script reported it, also NaN, as (step, mean over the ranks).
        events: the readable events.
    """

    began: float
    ranks: tuple[RankMeasures, ...]
    loss: tuple[tuple[float, float], ...]
    events: tuple[Event, ...]


def weighted(values_and_weights: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the weighted mean of the values that are not None, or None if there are none."""
    weighted_values = [(value, weight) for value, weight in values_and_weights if value is not None and weight > 0]
    total = sum(weight for _, weight in weighted_values)
    return sum(value * weight for value, weight in weighted_values) / total if total else None


def measures(run: Run) -> Measures:
    """Return the measurements of a run; ranks that wrote nothing have no samples."""
    readable = [event for event in run.events() if not isinstance(event, UnreadableEvent)]
    # A run that waits for nodes is refused, and waits again, if another run is faster.
    events = tuple(event for event in readable if getattr(event, "state", "") != REFUSED)
    times = [event.time for event in events if event.time]
    ranks = []
    for placement in run.record.layout:
        sampled = tuple(samples(run.folder / f"ranks/rank-{placement.rank}.metrics.jsonl"))
        ranks.append(RankMeasures(rank=placement.rank, node=placement.node, threads=placement.threads, samples=sampled))
    began = min(times, default=run.record.created)
    return Measures(began=began, ranks=tuple(ranks), loss=tuple(losses(events)), events=events)


def samples(path: Path) -> Iterator[Sample]:
    """Yield the readable samples of a file; the last line may be incomplete if the rank was killed."""
    try:
        lines = atomic_write.read(path).split(b"\n")
    except OSError:  # The rank has measured nothing, or the file belongs to another user.
        return
    for line in lines:
        try:
            sample = values.parse(Sample, line, path.name, ignore_unknown=True)
        except values.ProtocolError:
            continue
        if sample.seconds > 0 and 0 <= sample.time <= LAST_TIME:
            yield sample


def losses(events: Iterable[Event]) -> Iterator[tuple[float, float]]:
    """Yield the losses by step, as rank 0 reported them for all ranks.

    A restarted run reports some steps twice; the later loss replaces the earlier one.
    """
    losses_by_step: dict[float, float] = {}
    for event in events:
        if isinstance(event, Progress) and event.rank == 0 and event.loss is not None:
            step = len(losses_by_step) if event.step is None else event.step
            losses_by_step[float(step)] = float(event.loss)
    yield from sorted(losses_by_step.items())


def is_number(loss: float | None) -> TypeGuard[float]:
    """Return whether a loss can be drawn; a training that diverges ends in NaN."""
    return loss is not None and math.isfinite(loss)


def scores(result: Result | None, when: str = "after") -> dict[str, float]:
    """Return the scores of a result from `before` or `after` the training, by their names."""
    return numbers(result.figures.get(when)) if result else {}


def numbers(value: Any) -> dict[str, float]:
    """Return the items of a mapping whose values are numbers."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: figure for name, item in items if (figure := number(item)) is not None}


def number(value: Any) -> float | None:
    """Return the value if it is a number, otherwise None; NaN is kept because it shows a failed training."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
