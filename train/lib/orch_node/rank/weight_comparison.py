"""Compare the weights of all ranks, to detect ranks that train alone or start in different states.

Optimizers are compared before their first step, after their third, and whenever their steps have doubled. The ranks
exchange short summaries through the store of the default group: the first rank that gets there sets the reference,
with an atomic compare-and-set, and every other rank compares itself with it. No rank waits for
another one, however many steps each makes, no collective of the script is reordered, and the cost
is one round trip per rank.

Weights in a DistributedDataParallel that averages gradients over all ranks must be equal at all times.
Other weights that started equal and differ may be averaged later (local SGD, federated learning): a
warning comes first, and an error at the end of the script if they were never averaged. Sharded
weights are only compared with their replicas. Not compared are those of ranks that compute one model
together (pipelines, tensor and expert parallelism).
"""

from __future__ import annotations

import os
import sys
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from orch_node.events import warn
from orch_node.protocol import values
from orch_node.protocol.values import Measured
from orch_node.rank import communication
from orch_node.rank import weight_inspection as weights
from orch_node.rank.checks import RankError, TrainingCheck, describe, has_separate_models, safely
from orch_node.rank.parallelism import (
    computes_together,
    data_parallel_modules,
    ddp_weights,
    fsdp_modules,
    local_replicas,
    shared_weights,
)

UNKNOWN_STEPS = -2  # a rank may hold no part of sharded weights, and so no state
COMPARED_STEP = 3  # after so many steps of an optimizer its weights are compared for the first time
MAX_OPTIMIZERS = 8  # of which each is compared; of later ones with the same shapes those whose number has doubled
BUCKETS = 16  # sums of sampled elements in a summary
SAMPLED_ELEMENTS = 1 << 15  # in a summary, of all weights; at least one of each
MAX_WATCHED_WEIGHTS = 3  # whose changes outside of optimizers are noticed; averaging changes all weights
# Ranks that train together differ by rounding alone, far less than what three steps change; ranks that
# train alone on different data differ by a large part of it.
TOLERANCE = 0.01
SAME_START = 1e-5  # relative; random initial weights may differ in the last bit between CPUs
MAX_LOGGED = 16  # elements that ranks exchange for a log; a loss of the outputs of all ranks exchanges more


@dataclass(frozen=True)
class Summary:
    """A short description of the values of some weights, by which ranks compare them."""

    shapes: int  # a checksum of their shapes, 0 if there are no weights
    checksum: int  # of all bits
    sums: tuple[Measured, ...]  # of sampled elements with alternating signs


@dataclass(frozen=True)
class State:
    """The state of some weights of an optimizer of a rank, for comparison with those of other ranks.

    Attributes:
        rank: of the sender.
        start: the weights before the first step.
        now: the weights now.
        steps: the largest step number in the optimizer's state, -1 if it has none, or UNKNOWN_STEPS.
        has_state: whether the optimizer has any state, as from a checkpoint.
        was_equal: whether an earlier attempt of the run started with equal weights.
        losses: of the steps so far.
    """

    rank: int
    start: Summary
    now: Summary
    steps: int = COMPARED_STEP
    has_state: bool = False
    was_equal: bool = False
    losses: tuple[Measured, ...] = ()

    def starts_like(self, reference: State) -> bool:
        """Return whether the weights of two ranks were equal before the first step, up to rounding."""
        start, expected = self.start, reference.start
        if start.shapes != expected.shapes or start.checksum == expected.checksum:
            return start.shapes == expected.shapes
        scale = max(map(abs, (*start.sums, *expected.sums)), default=0.0)
        return distance(start.sums, expected.sums) <= SAME_START * scale

    def moved_alike(self, reference: State) -> bool:
        """Return whether both ranks have made the same updates, as with summed gradients, wherever they started."""
        updates, expected = ([b - a for a, b in zip(s.start.sums, s.now.sums)] for s in (self, reference))
        return distance(updates, expected) < TOLERANCE * max(map(abs, updates), default=0.0)

    def moved_apart(self, reference: State) -> bool:
        """Return whether steps from these starts have led to different weights, not only rounded differently."""
        if self.now.shapes != reference.now.shapes or self.now.checksum == reference.now.checksum:
            return False
        if self.now.checksum == self.start.checksum and reference.now.checksum == reference.start.checksum:  # frozen
            return False
        movement = max(distance(state.now.sums, state.start.sums) for state in (self, reference))
        difference = distance(self.now.sums, reference.now.sums)
        return movement == 0 or difference > TOLERANCE * movement  # False if a value is NaN


@dataclass(frozen=True)
class WeightRecord:
    """Some weights of an optimizer: those that a DistributedDataParallel or FSDP keeps equal, or the other ones."""

    key: str  # of the optimizer and of the kind of its weights
    is_shared: bool
    is_replicated: bool  # as with HSDP
    weights: list[weakref.ref[Any]]
    start: Summary
    is_sharded: bool  # whether the optimizer also has sharded weights, which are not compared

    def held(self) -> list[Any]:
        """Return the weights that still exist."""
        return [held for weight in self.weights if (held := weight()) is not None]


@dataclass
class OptimizerRecord:
    """An optimizer and how many steps it has made."""

    index: int  # in the order of the first steps
    number: int  # 0 for the first MAX_OPTIMIZERS; of later ones, how many with the same shapes came before
    steps: int = 0
    compared_step: int = COMPARED_STEP  # after which its weights are compared next
    parts: list[WeightRecord] = field(default_factory=list)  # none if its weights cannot be compared


@dataclass(eq=False)
class WeightComparison(TrainingCheck):
    """Compares the weights of this rank's optimizers with the reference of all ranks.

    Attributes:
        torch: the torch module.
        rank: of this process.
        store: of the default group.
        restarted: whether this is a later attempt of the run.
        equal_mark: with the key of some weights, the name of a file that exists once the ranks of this node have
            started with equal weights of it.
        hint: returns what to change in a script that trains alone.
        losses: those of the first steps, to which later ones are appended.
    """

    torch: ModuleType
    rank: int
    store: Any
    restarted: bool
    equal_mark: Path
    hint: Callable[[], str]
    losses: Sequence[float]
    name = "comparison of the ranks' weights"
    pid: int = field(default_factory=os.getpid)
    records: weakref.WeakKeyDictionary[Any, OptimizerRecord] = field(default_factory=weakref.WeakKeyDictionary)
    recorded: int = 0  # optimizers, also those that have ended
    numbers: Counter[int] = field(default_factory=Counter)  # of recorded optimizers, by the shapes of their weights
    kinds: Counter[tuple[str, int]] = field(default_factory=Counter)  # of weights that optimizers have held
    has_ddp: bool = False  # whether there was a DistributedDataParallel when weights had moved apart
    has_shared: bool = False  # whether any optimizer has held weights that a DistributedDataParallel keeps equal
    stepping: Any = None  # the outermost optimizer whose step() runs, such as that of ZeRO
    operations_before_step: int = 0
    operations_at_start: int = 0
    has_warned: bool = False
    suspicion: Suspicion | None = None
    averages: bool = False  # whether the script seems to average weights from time to time
    unequal_start_error: RankError | None = None  # if the ranks have not communicated before the first step

    # Entry points: called by torch before and after each optimizer step, and at the end of the script.

    @safely
    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.stepping is not None:
            return
        self.stepping = optimizer
        record = self.find_record(optimizer)
        is_new = record.steps == 0  # as in each round of federated learning
        suspicion, largest = self.suspicion, communication.COUNTS.largest_exchange
        if suspicion and (suspicion.may_average(self.torch) or (is_new and largest >= suspicion.size)):
            self.end_suspicion()
        if is_new and record.number & (record.number - 1) == 0:  # 0 or a power of two
            self.begin_record(record, optimizer)
        if self.suspicion or record.steps + 1 == record.compared_step:
            self.operations_before_step = communication.operations(self.torch)

    @safely
    def after_step(self, optimizer: Any, *_: Any) -> None:
        if self.stepping is not optimizer:
            return
        self.stepping = None
        record = self.find_record(optimizer)
        if self.suspicion:
            if communication.operations(self.torch) > self.operations_before_step:
                self.end_suspicion()  # the optimizer exchanges something itself
            else:
                self.suspicion.sample()
        record.steps += 1
        if record.steps == record.compared_step:
            record.compared_step *= 2
            self.compare_updated(record)

    def check_end(self) -> None:
        """Check at the end of the script that weights which moved apart were averaged.

        Raises:
            RankError: if this rank has trained alone.
        """
        super().check_end()
        suspicion, counts = self.suspicion, communication.COUNTS
        if suspicion is None or self.finished or os.getpid() != self.pid or has_separate_models():
            return
        has_reduced = counts.largest_reduction >= suspicion.size and not suspicion.reduces_in_vain
        if not (has_reduced or counts.largest_object >= suspicion.bytes or suspicion.may_average(self.torch)):
            self.end_never_averaged(suspicion.reference)

    # Steps.

    def end_suspicion(self) -> None:
        self.suspicion, self.averages = None, True

    def find_record(self, optimizer: Any) -> OptimizerRecord:
        """Return the record of an optimizer, a new one if it is unknown."""
        if optimizer not in self.records:
            shapes = weights.shape_checksum(weights.parameters([optimizer]))
            number = self.numbers[shapes] if self.recorded >= MAX_OPTIMIZERS else 0
            self.records[optimizer] = OptimizerRecord(self.recorded, number)
            self.recorded += 1
            self.numbers[shapes] += 1
        return self.records[optimizer]

    def begin_record(self, record: OptimizerRecord, optimizer: Any) -> None:
        """Compare the state of an optimizer before its first step."""
        if not self.torch.distributed.is_initialized():
            return
        all_held = list(weights.parameters([optimizer]))
        in_fsdp2 = {id(weight) for module in fsdp_modules("FSDPModule") for weight in module.parameters()}
        held = [weight for weight in all_held if id(weight) not in in_fsdp2 and not hasattr(weight, "device_mesh")]
        is_sharded = len(held) < len(all_held)
        if record.index == 0:
            self.operations_at_start = communication.operations(self.torch)
            communication.COUNTS.reset_largest()
        elif len(self.records) < self.recorded:  # one optimizer per round
            self.averages |= communication.COUNTS.largest_exchange >= largest_size(held)
        readable = all(weights.is_readable(self.torch, weight) for weight in held) and not fsdp_modules()
        divided = self.divide(held) if readable else {"other": []}
        states = [state for state in list(optimizer.state.values()) if isinstance(state, dict)]
        is_complete = readable and not is_sharded
        has_state, default = is_complete and bool(optimizer.state), -1 if is_complete else UNKNOWN_STEPS
        steps = max((int(state["step"]) for state in states if state.get("step") is not None), default=default)
        replicas = local_replicas(self.torch, all_held)
        for kind, part in (*divided.items(), *replicas.items()):
            if not part and any(divided.values()):
                continue  # one exchange shows which ranks have resumed, even if no weights can be compared
            is_shared = kind.startswith("shared")
            self.has_shared |= is_shared
            start = summarize(self.torch, part)
            self.kinds[kind, start.shapes] += 1  # some ranks may have further optimizers of other weights
            number = f"later-{record.number}" if record.number else self.kinds[kind, start.shapes]
            key = f"{start.shapes}-{number}-{kind}"
            references = list(map(weakref.ref, part))
            record.parts.append(WeightRecord(key, is_shared, kind in replicas, references, start, is_sharded))
            state = State(self.rank, start, start, steps, has_state, self.mark_of(key).exists())
            if not record.number:
                self.check_start(record.parts[-1], state, self.exchange(key, "start", state))
        self.unequal_start_error = None

    def divide(self, held: list[Any]) -> dict[str, list[Any]]:
        """Return the weights of an optimizer that a DistributedDataParallel keeps equal, and those to compare, too.

        The key of the first kind has a checksum of their names: each rank may update other layers of the same shapes.

        Weights that it leaves out belong to one rank, such as experts. If one exists, tensors other than parameters
        are inputs, as in adversarial training. Scripts may pass weights in an order that differs between ranks.
        """
        positions, ignored = ddp_weights(self.torch)
        shared = sorted((w for w in held if id(w) in positions), key=lambda weight: positions[id(weight)])
        unshared = [weight for weight in held if id(weight) not in positions and id(weight) not in ignored]
        if positions:
            unshared = [weight for weight in unshared if isinstance(weight, self.torch.nn.Parameter)]
        names = zlib.crc32(repr([positions[id(weight)][0] for weight in shared]).encode())
        return {f"shared-{names:08x}": shared, "other": unshared} if shared else {"other": unshared}

    def compare_updated(self, record: OptimizerRecord) -> None:
        """Compare the weights of an optimizer with those of the first rank that has made as many steps with it."""
        for part in record.parts if self.torch.distributed.is_initialized() else ():
            held = part.held()
            if 0 < len(held) == len(part.weights) and all(weights.is_readable(self.torch, weight) for weight in held):
                self.compare_part(record, part, held)

    def compare_part(self, record: OptimizerRecord, part: WeightRecord, held: list[Any]) -> None:
        now, losses = summarize(self.torch, held), tuple(self.losses[: record.steps])
        if now.shapes != part.start.shapes:
            return
        steps, state = f"{record.steps} optimizer steps", State(self.rank, part.start, now, losses=losses)
        reference = self.exchange(part.key, f"updated/{record.steps}", state)
        # Ranks may have made different numbers of later optimizers.
        if (not record.number or state.starts_like(reference)) and self.moved_apart(state, reference, held, steps):
            if part.is_replicated:
                cause = "they are replicas (FSDP averages nothing if a group of shards has one rank)"
                self.end_alone(reference, cause, steps)
            self.check_apart(record, part, state, reference, steps)
        if part.is_shared and (record.index, record.steps) == (0, COMPARED_STEP):
            self.check_data(state, reference, f"{record.steps} steps")
        # If a DistributedDataParallel exists, these may be the weights of a copy, trained to find a learning rate.
        if record.steps == COMPARED_STEP and self.is_alone() and (part.is_shared or not shared_weights(self.torch)):
            self.warn_once("no-exchange", reference, steps)

    def exchange(self, key: object, moment: str, state: State) -> State:
        """Return the state of the first rank that came to this point: the reference of all ranks.

        After the end of rank 0, which has the store, this is the state of this rank.

        Raises:
            RankError: if rank 0 has ended and this rank has trained alone so far.
        """
        key = f"orch/weights/{key}/{moment}"
        try:
            return values.parse(State, self.store.compare_set(key, "", values.render(state)), key)
        except RuntimeError:
            if moment != "start" and self.is_alone() and not has_separate_models():
                self.end_never_averaged(0, "ended-rank")
            return state

    def is_alone(self) -> bool:
        """Return whether this rank has exchanged nothing that is counted since the first step."""
        return 0 < communication.operations(self.torch) == self.operations_at_start

    def mark_of(self, key: str) -> Path:
        return self.equal_mark.with_name(f"{self.equal_mark.name}-{key}")

    # Decide.

    def check_start(self, part: WeightRecord, state: State, reference: State) -> None:
        """Raise RankError if this rank starts in another state than the reference, although it must not."""
        if has_separate_models():
            return
        same_shapes = state.start.shapes == reference.start.shapes
        if same_shapes and (part.is_shared or self.restarted):
            check_resumed(state, reference)
        cause = ""
        if part.is_shared and same_shapes:
            cause = "a DistributedDataParallel keeps them equal"
        elif part.is_replicated and same_shapes:
            cause = "they are replicas, which start equal with the same seed on all ranks or sync_module_states=True"
        elif self.restarted and (state.was_equal or reference.was_equal):
            cause = "they were equal when the run began"
        if state.starts_like(reference):
            if state.rank != reference.rank and not self.restarted:
                self.mark_of(part.key).touch(0o600)
        elif cause:
            raise RankError(describe("unequal-start", rank=state.rank, reference=reference.rank, cause=cause))
        elif self.unequal_start_error:
            raise self.unequal_start_error

    def moved_apart(self, state: State, reference: State, held: Sequence[Any], steps: str) -> bool:
        """Return whether weights of this rank and the reference have moved apart.

        Raises:
            RankError: if a DistributedDataParallel holds them.
        """
        if not state.moved_apart(reference) or has_separate_models():
            return False
        if not shared_weights(self.torch).isdisjoint(map(id, held)):
            self.end_alone(reference, "a DistributedDataParallel holds them", steps)
        return True

    def check_apart(
        self, record: OptimizerRecord, part: WeightRecord, state: State, reference: State, steps: str
    ) -> None:
        """Raise RankError or warn of weights that have moved apart from those of the reference."""
        self.has_ddp, same_start = bool(data_parallel_modules(self.torch)), state.starts_like(reference)
        if shared_weights(self.torch) and same_start and not self.has_shared:
            self.end_alone(reference, "there is a DistributedDataParallel, whose weights no optimizer changes", steps)
        every = [weight for weights_of_kind in record.parts for weight in weights_of_kind.held()]
        reduces = communication.COUNTS.largest_reduction >= largest_size(every)
        if reduces and not same_start and state.moved_alike(reference) and not computes_together(self.torch):
            cause = "all make the same updates"
            raise RankError(describe("unequal-start", rank=state.rank, reference=reference.rank, cause=cause))
        if self.averages or communication.operations(self.torch) > self.operations_before_step:
            return
        has_reduced = communication.COUNTS.largest_reduction >= sum(int(weight.numel()) for weight in every)
        if has_reduced and "deepspeed" in sys.modules:  # its ranks hold parts of the weights
            return
        if part.is_sharded or computes_together(self.torch):
            if part.is_sharded and not communication.COUNTS.point_to_point:
                self.warn_once("not-sharded", reference, steps)
            if same_start and not part.is_sharded:
                self.warn_once("perhaps-together", reference, steps)
        elif not same_start:
            condition = " that no DistributedDataParallel holds" if self.has_shared else ""
            self.warn_once("separate-models", reference, steps, condition)
        elif self.suspicion or not has_reduced:
            self.suspicion = self.suspicion or Suspicion(reference.rank, part.held(), every)
            self.warn_once("apart", reference, steps)
        else:  # the weights may be averaged after each step, which then changes them
            self.suspicion = Suspicion(reference.rank, part.held(), every)

    def check_data(self, state: State, reference: State, steps: str) -> None:
        """Warn on one rank if the ranks of a DistributedDataParallel compute the same losses from the same data."""
        is_same = state.losses == reference.losses and len(set(state.losses)) > 1
        is_next = state.rank == (1 if reference.rank == 0 else 0)
        if is_next and is_same and communication.COUNTS.largest_exchange <= MAX_LOGGED and not has_separate_models():
            self.warn_once("same-data", reference, steps)

    def end_alone(self, reference: State, cause: str, steps: str) -> None:
        raise RankError(describe("trains-alone", steps=steps, rank=self.rank, reference=reference.rank, cause=cause))

    def end_never_averaged(self, reference: int, name: str = "never-averaged") -> None:
        hint = describe("not-synced") if self.has_ddp or data_parallel_modules(self.torch) else self.hint()
        raise RankError(describe(name, rank=self.rank, reference=reference, hint=hint))

    def warn_once(self, name: str, reference: State, steps: str, condition: str = "") -> None:
        if not self.has_warned:
            self.has_warned = True
            warn(describe(name, steps=steps, rank=self.rank, reference=reference.rank, condition=condition))


class Suspicion:
    """Weights that may be those of a rank that trains alone, until something shows that they are not.

    Averaging changes weights between two steps, and exchanges tensors at least as large as the weights of an optimizer.

    Args:
        reference: the rank whose weights are different.
        apart: the weights that are different.
        held: all weights of their optimizer; an exchange as large as a few of them may be one of predictions.
    """

    def __init__(self, reference: int, apart: Sequence[Any], held: Sequence[Any]) -> None:
        self.reference = reference
        self.watched = sorted(apart, key=lambda weight: -int(weight.numel()))[:MAX_WATCHED_WEIGHTS]
        self.size = largest_size(held)
        self.bytes = sum(int(weight.numel()) * int(weight.element_size()) for weight in held)
        self.samples: list[Any] = []
        # Whether the script sums such tensors in each step without a change of the weights, as of gradients after it.
        self.reduces_in_vain = True
        self.changes_always = True  # whether anything but an optimizer has changed the weights after each step
        self.sample()

    def sample(self) -> None:
        """Record the weights after an optimizer step, and measure what is exchanged from now on."""
        self.reduces_in_vain &= communication.COUNTS.largest_reduction >= self.size
        communication.COUNTS.reset_largest()
        self.samples = [weights.sample(weight) for weight in self.watched]

    def may_average(self, torch: ModuleType) -> bool:
        """Return whether the script seems to have averaged the weights since the last sample.

        A change after each step without an exchange is another one, as where weights are clamped.
        """
        has_changed = self.has_changed(torch)
        self.changes_always &= has_changed
        return has_changed and not (self.changes_always and communication.COUNTS.largest_exchange <= MAX_LOGGED)

    def has_changed(self, torch: ModuleType) -> bool:
        """Return whether anything but an optimizer has changed the weights since the last sample.

        Another type, in which a script saves the weights, rounds them.
        """
        samples = zip(map(weights.sample, self.watched), self.samples)
        return any(now.dtype == before.dtype and not torch.equal(now, before) for now, before in samples)


def check_resumed(state: State, reference: State) -> None:
    """Raise RankError if one of two ranks has resumed from a checkpoint and the other has not, or from another one."""
    is_same = (state.steps, state.has_state) == (reference.steps, reference.has_state)
    if is_same or UNKNOWN_STEPS in (state.steps, reference.steps):
        return
    first, second = sorted((state, reference), key=lambda s: (-s.steps, not s.has_state))
    step = f" at optimizer step {first.steps}" if first.steps >= 0 else ""
    state_of_second = f"from one at optimizer step {second.steps}" if second.steps > 0 else "has not"
    fresh = f"rank {second.rank} {state_of_second}"
    raise RankError(describe("unequal-checkpoints", resumed=f"rank {first.rank}", step=step, fresh=fresh))


def largest_size(held: Iterable[Any]) -> int:
    """Return the number of elements of the largest weight."""
    return max((int(weight.numel()) for weight in held), default=0)


def distance(first: Iterable[float], second: Iterable[float]) -> float:
    return max((abs(a - b) for a, b in zip(first, second)), default=0.0)


def summarize(torch: ModuleType, held: Sequence[Any]) -> Summary:
    if not held:
        return Summary(0, 0, ())
    shapes = weights.shape_checksum(held)
    checksum = sum(index * weights.checksum(torch, weight) for index, weight in enumerate(held, start=1))
    size = min(64, max(1, SAMPLED_ELEMENTS // len(held)))
    elements = torch.cat([weights.sample(weight, size).double() for weight in held])
    positions = torch.arange(elements.numel())
    signs = (positions * 2654435761 >> 16) % 2 * 2 - 1
    sums = torch.zeros(BUCKETS, dtype=torch.float64).index_add_(0, positions % BUCKETS, elements * signs)
    return Summary(shapes, checksum % (1 << 62), tuple(sums.tolist()))
