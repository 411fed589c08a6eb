"""Tells a run whose training does not reach the weights that compute, before its third step.

The weights that compute are those that get gradients: they are found in the graph of each
backward(). The weights that are trained are those in the optimizers. Checksums of them are
compared from one optimizer step to the next. What surely is wrong ends the rank; what only looks
like it is a warning. As soon as the weights have been seen to change, nothing is looked at any
more.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from orch_node.events import report
from orch_node.rank import weights
from orch_node.rank.checks import RankError

JUDGED = 3  # before this step
PATIENCE = 30  # steps after which what is still not clear stays untold
CONSTANT = 20  # equal losses in a row that are told
GRAPHS = 4  # of a step that are searched for weights
IPEX_FUSED = range(3, 30)  # calls of backward() without a step that is seen

COPIES = (
    "training does not reach the weights that compute: after {steps} optimizer steps none of these "
    "{count} weights has changed, and no optimizer holds them. It holds {held} others{but}. "
    "Make the optimizer of the parameters of the module whose forward is called, after that module "
    "was copied, cast or wrapped."
)
PACKED = (
    "training does not reach the weights that compute: {apart} of {layers} layers compute with "
    "weights that IPEX packed, and the optimizer changes copies of them. The model was moved after "
    "ipex.optimize (accelerate moves it from cpu to cpu:0). Set ACCELERATE_TORCH_DEVICE=cpu before "
    "the Accelerator or Trainer is made, or call ipex.optimize after any model.to()."
)
PAST_DDP = (
    "every rank trains alone: {steps} optimizer steps were made without any collective operation, "
    "though there is a DistributedDataParallel. Call that one, not the module inside it, and wrap "
    "what ipex.optimize returned."
)
ALONE = (
    "{steps} optimizer steps were made without any collective operation: unless the weights are "
    "averaged later, every rank trains alone."
)
PARTLY = (
    "{count} weights that get gradients are in no optimizer and do not change, while an optimizer "
    "holds as many others of the same shapes that get none. It was probably made before a part of "
    "the model was replaced."
)
UNCHANGED = (
    "the weights are after {steps} optimizer steps what they were before, though gradients and "
    "learning rate are not 0. Something puts them back, or the optimizer does not step."
)
SAME_LOSS = (
    "the loss is {loss} to the last digit in each of the first {steps} steps, while the weights "
    "change. It probably does not depend on them."
)


def begin(torch: ModuleType, collectives: Callable[[], int]) -> Watch | None:
    """Watch the first optimizer steps of this process. `collectives`: operations so far."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    if not hasattr(optimizer, "register_optimizer_step_pre_hook"):  # torch 2.0
        return None
    watch = Watch(torch, collectives)
    handle = optimizer.register_optimizer_step_pre_hook(watch.before_step)
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if watch.ended:
            watch.leave()
        else:
            watch.before_backward(args[0] if args else kwargs.get("tensors"))
        return original(*args, **kwargs)

    def leave() -> None:
        handle.remove()
        if torch.autograd.backward is backward:
            torch.autograd.backward = original

    torch.autograd.backward, watch.leave = backward, leave
    return watch


def warn(text: str) -> None:
    """Into the rank's log, and to whoever follows the run."""
    print(f"warning: {text}", file=sys.stderr)
    report("warning", text=f"warning: {text}")


class Watch:
    """A round begins with the first optimizer step after a backward(): several optimizers may step
    in one, and one of them may step many times."""

    def __init__(self, torch: ModuleType, collectives: Callable[[], int]) -> None:
        self.torch = torch
        self.collectives = collectives
        # Not from within a hook: torch is in a loop over them then.
        self.leave: Callable[[], None] = lambda: None
        self.ended = False
        self.round = 0
        self.backwards = 0  # since this round began
        self.began = 0  # collective operations before the first round
        self.packed: list[Any] | None = None  # layers of IPEX that have been moved
        self.optimizers: list[Any] = []
        self.computing: dict[int, Any] = {}  # weights that got gradients
        self.sums: dict[int, tuple[int, Any]] = {}  # checksum when first seen, and a sample
        self.held: dict[int, int] = {}  # checksums of the optimizers' own
        self.got_gradients: set[int] = set()
        self.due = 0  # rounds in which some weight had to change
        self.losses: list[float] = []
        self.changed = False

    def end(self) -> None:
        self.ended = True
        self.computing, self.sums, self.held, self.optimizers = {}, {}, {}, []

    # What is seen.

    def before_backward(self, tensors: Any) -> None:
        self.backwards += 1
        roots = [tensors] if self.torch.is_tensor(tensors) else list(tensors or ())
        self.carefully(self.look_at_graph, roots)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.ended:
            return
        if not any(one is optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
        if self.backwards:
            self.backwards = 0
            self.carefully(self.look_at_weights)

    def carefully(self, look: Callable[..., None], *args: Any) -> None:
        """What cannot be looked at is not judged; a training never ends by our own mistake."""
        try:
            look(*args)
        except RankError:
            self.end()
            raise
        except Exception as error:
            print(f"orch: whether this run learns is not checked: {error!r}", file=sys.stderr)
            self.end()

    def look_at_graph(self, roots: list[Any]) -> None:
        if self.backwards == 1:
            self.note_loss(roots)
        # The fused optimizers of IPEX run no hooks: then there are many of these, and no round.
        if self.backwards == 1 if self.round else self.backwards in IPEX_FUSED:
            self.look_at_ipex()
        if self.backwards > GRAPHS or self.round >= JUDGED:
            return
        for leaf in weights.leaves(self.torch, roots):
            if isinstance(leaf, self.torch.nn.Parameter):
                self.computing[id(leaf)] = leaf

    def look_at_ipex(self) -> None:
        if self.packed is None:
            self.layers = weights.packed_layers()
            self.packed = weights.moved_away(self.layers)
        if wrong := weights.differ(self.torch, self.packed):
            raise RankError(PACKED.format(apart=len(wrong), layers=len(self.layers)))

    def note_loss(self, roots: list[Any]) -> None:
        if len(self.losses) >= CONSTANT:
            return
        loss = roots[0] if roots else None
        if loss is not None and loss.numel() == 1 and loss.element_size() >= 4:
            self.losses.append(float(loss.detach()))

    def look_at_weights(self) -> None:
        self.round += 1
        held = list(weights.parameters(self.optimizers))
        if not all(weights.readable(self.torch, one) for one in [*held, *self.computing.values()]):
            self.end()  # shards of FSDP and the like
            return
        if self.round == 1:
            self.began = self.collectives()
        self.got_gradients |= {id(one) for one in held if one.grad is not None}
        self.compare(held)
        self.judge(held)

    def compare(self, held: list[Any]) -> None:
        """Whether a weight that computes is another one than it was. Ends at the first of them."""
        for key, weight in self.computing.items():
            if key not in self.sums:
                self.sums[key] = (self.checksum(weight), self.sample(weight))
            elif not self.changed:
                self.changed = self.checksum(weight) != self.sums[key][0]
        if not self.changed:
            places = {weights.place(one) for one in self.computing.values()}
            self.due += any(weights.must_change(self.torch, one, places) for one in self.optimizers)

    def checksum(self, weight: Any) -> int:
        return weights.checksum(self.torch, weight)

    def sample(self, weight: Any) -> Any:
        return weight.detach().reshape(-1)[:: max(1, weight.numel() // 64)].clone()

    # What follows from it.

    def judge(self, held: list[Any]) -> None:
        if not self.changed and not self.covered(held):
            self.judge_copies(held)
        elif self.round == JUDGED and self.changed:
            self.judge_exchange()
            self.judge_parts(held)
        elif not self.changed and self.due > 2:
            self.tell(UNCHANGED, steps=self.round - 1)
        if self.changed and self.round >= JUDGED:
            self.judge_loss()
        if self.round >= PATIENCE:
            self.finish()

    def finish(self) -> None:
        """Nothing more to find, unless layers of IPEX wait for a step that is visible in BF16."""
        if not self.packed:
            self.end()

    def covered(self, held: list[Any]) -> bool:
        """Whether an optimizer holds at least one of the weights that compute."""
        places = {weights.place(one) for one in held}
        return not self.computing or any(
            weights.place(one) in places for one in self.computing.values()
        )

    def judge_copies(self, held: list[Any]) -> None:
        """None of the weights that compute is in an optimizer. It may be that what the optimizers
        hold is copied to them, as for BF16; then they change as soon as that is visible in BF16."""
        idle = not any(id(one) in self.got_gradients for one in held)
        moved = self.moved_visibly(held)
        if self.round < JUDGED or not (idle or moved):
            return
        but = ", which get no gradients" if idle else ", which do change"
        raise RankError(
            COPIES.format(steps=self.round - 1, count=len(self.computing), held=len(held), but=but)
        )

    def moved_visibly(self, held: list[Any]) -> bool:
        """Whether what the optimizers hold has changed in the precision that computes."""
        coarsest = min(self.computing.values(), key=lambda one: one.element_size()).dtype
        now = {id(one): self.checksum(one.detach().to(coarsest)) for one in held}
        moved = any(self.held.get(key, total) != total for key, total in now.items())
        self.held = {**now, **self.held}
        return moved

    def judge_exchange(self) -> None:
        distributed = self.torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        if distributed.get_world_size() == 1 or not 0 < self.collectives() == self.began:
            return
        if weights.data_parallel(self.torch):
            raise RankError(PAST_DDP.format(steps=self.round - 1))
        warn(ALONE.format(steps=self.round - 1))

    def judge_parts(self, held: list[Any]) -> None:
        places = {weights.place(one) for one in held}
        left_out = [
            one
            for key, one in self.computing.items()
            if weights.place(one) not in places and self.checksum(one) == self.sums[key][0]
        ]
        used = {weights.place(one) for one in self.computing.values()}
        idle = Counter(
            tuple(one.shape)
            for one in held
            if id(one) not in self.got_gradients and weights.place(one) not in used
        )
        wanted = Counter(tuple(one.shape) for one in left_out)
        if left_out and not wanted - idle:
            warn(PARTLY.format(count=len(left_out)))

    def judge_loss(self) -> None:
        """Only losses that are all the same keep the watch going."""
        if len(set(self.losses)) != 1 or self.losses[0] == 0:
            self.finish()
        elif len(self.losses) >= CONSTANT:
            if self.moved_far():
                warn(SAME_LOSS.format(loss=self.losses[0], steps=len(self.losses)))
            self.finish()

    def moved_far(self) -> bool:
        """Whether the weights are so far from where they were that any loss would show it."""
        pairs = [(self.sample(one), self.sums[key][1]) for key, one in self.computing.items()]
        way = sum(float((now - then).float().norm()) for now, then in pairs)
        return way > 1e-3 * sum(float(then.float().norm()) for _, then in pairs)

    def tell(self, text: str, **figures: object) -> None:
        warn(text.format(**figures))
        self.end()
