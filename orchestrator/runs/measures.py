"""What a run's ranks have measured and told, as values: RUNS/<id>/ranks/*.metrics.jsonl, events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from orch_node.protocol import values
from orch_node.protocol.events import LAST_TIME, Event, Progress, UnreadableEvent
from orch_node.protocol.values import ProtocolError

from orchestrator.runs.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A line of orch_node/rank/metrics.py, which says what the figures are. Seconds, bytes."""

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
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One or several whole steps, that ended at `time` and took `seconds`."""

    time: float
    seconds: float
    steps_per_second: float
    samples_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasures:
    """One rank: where it ran, and its samples in the order of time."""

    rank: int
    node: str
    threads: int
    samples: tuple[Sample, ...]

    @property
    def steps(self) -> int:
        return sum(sample.steps for sample in self.samples)

    @property
    def step_seconds(self) -> float | None:
        """Mean over all steps that were timed."""
        return weighted((s.step_seconds, s.steps) for s in self.samples)

    @property
    def longest_step(self) -> float | None:
        return max((s.step_seconds_max for s in self.samples if s.step_seconds_max), default=None)

    @property
    def work_seconds(self) -> float | None:
        """Mean part of a step outside backward(): what this rank alone is slow or quick at."""
        return weighted((s.work_seconds, s.steps) for s in self.samples)

    @property
    def samples_per_second(self) -> float | None:
        """From its first step to its last; None if the script does not tell."""
        return weighted((one.samples_per_second, one.seconds) for one in self.stretches())

    @property
    def steps_per_second(self) -> float | None:
        return weighted((one.steps_per_second, one.seconds) for one in self.stretches())

    def stretches(self) -> list[Stretch]:
        """The time that it trained in, in parts of whole steps."""
        return list(stretches(self.samples))

    @property
    def peak_rss(self) -> float:
        return max((sample.rss_bytes for sample in self.samples), default=0.0)

    @property
    def cores_used(self) -> float | None:
        """CPU seconds for each second."""
        seconds = sum(sample.seconds for sample in self.samples)
        return sum(sample.cpu_seconds for sample in self.samples) / seconds if seconds else None

    @property
    def last_loss(self) -> float | None:
        return next((s.loss for s in reversed(self.samples) if s.loss is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """A run as it was measured. `loss`: (step, mean over the ranks) as the script reported it."""

    began: float
    ranks: tuple[RankMeasures, ...]
    loss: tuple[tuple[float, float], ...]
    events: tuple[Event, ...]


def stretches(samples: Iterable[Sample]) -> Iterator[Stretch]:
    """A step may take longer than a sample: those without a step belong to the next that has one.

    The steps' own time counts where the samples say the same, up to the size of one: it is exact.
    """
    before: float | None = None  # seconds without a step; None: there was none yet
    for one in samples:
        if not one.steps:
            before = before if before is None else before + one.seconds
            continue
        seconds = one.seconds + (before or 0.0)
        timed = (one.step_seconds or 0.0) * one.steps
        if timed > 0 and abs(timed - seconds) <= one.seconds:
            seconds = timed
        rate = one.samples_per_second
        yield Stretch(
            time=one.time,
            seconds=seconds,
            steps_per_second=one.steps / seconds,
            samples_per_second=None if rate is None else rate * one.seconds / seconds,
        )
        before = 0.0


def weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """The mean of the values that there are, by their weights."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def measures(run: Run) -> Measures:
    """All that was measured; ranks that left nothing have no samples."""
    events = tuple(event for event in run.events() if not isinstance(event, UnreadableEvent))
    times = [event.time for event in events if event.time]
    return Measures(
        began=min(times, default=run.record.created),
        ranks=tuple(
            RankMeasures(
                rank=place.rank,
                node=place.node,
                threads=place.threads,
                samples=tuple(samples(run.folder / f"ranks/rank-{place.rank}.metrics.jsonl")),
            )
            for place in run.record.layout
        ),
        loss=tuple(losses(events)),
        events=events,
    )


def samples(path: Path) -> Iterator[Sample]:
    """What can be read of it: the last line may be torn, of a rank that was killed."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:  # of a rank that never measured, or of somebody else
        return
    for line in lines:
        try:
            sample = values.parse_known(Sample, line, path.name)
        except ProtocolError:
            continue
        if sample.seconds > 0 and 0 <= sample.time <= LAST_TIME:
            yield sample


def losses(events: Iterable[Event]) -> Iterator[tuple[float, float]]:
    """Rank 0 speaks for all. A run that was restarted tells some steps twice: the later counts."""
    found: dict[float, float] = {}
    for event in events:
        if isinstance(event, Progress) and event.rank == 0 and is_number(event.loss):
            step = len(found) if event.step is None else event.step
            found[float(step)] = float(event.loss or 0.0)
    yield from sorted(found.items())


def is_number(loss: float | None) -> TypeGuard[float]:
    """What can be drawn: a training that diverges ends in NaN."""
    return loss is not None and math.isfinite(loss)
