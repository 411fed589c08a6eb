"""Detect training that cannot work, within the first optimizer steps of a rank.

The script is watched from outside, through a hook on optimizer steps and a wrapper around
torch.autograd.backward(). Two sets of weights matter:

- computing weights: those that get gradients, found in the graph of each backward();
- optimizer weights: those that the optimizers hold.

Checksums of both are compared from step to step. What is certainly wrong (the optimizer updates weights that the
model does not use) raises RankError before the third step; what only looks wrong is a warning. Watching ends once the
weights and the loss have changed.
"""

from __future__ import annotations

import os
from collections import Counter
from types import ModuleType
from typing import Any

from orch_node.events import warn
from orch_node.rank import communication
from orch_node.rank import weight_inspection as weights
from orch_node.rank.checks import RankError, TrainingCheck, describe, safely
from orch_node.rank.hooks import watch_gradients, watch_steps

CHECK_BEFORE_STEP = 3  # errors are raised when this step begins, at the latest
MAX_CHECKED_STEPS = 30  # after so many steps an unclear case is dropped without a message
MAX_LOSSES = 20  # a loss that stays equal for so many steps is reported
MAX_GRAPHS = 32  # backward() calls per step whose graph is searched for weights
# The fused optimizers of IPEX run no step hooks: check on these backward() calls instead.
IPEX_BACKWARD_CALLS = range(3, 30)


def begin(torch: ModuleType) -> FirstStepsCheck:
    """Check the first optimizer steps of this process; torch 2.0 has no hooks for them, only for backward()."""
    check = FirstStepsCheck(torch)
    check.has_step_hooks = watch_steps(check.before_step)
    watch_gradients(torch, "backward", check.before_backward)
    return check


class ComputingWeights:
    """The weights that get gradients, and what they were when first seen."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.by_id: dict[int, Any] = {}
        self.inputs: set[int] = set()  # ids of other tensors that get gradients, such as images
        self.initial: dict[int, tuple[int, Any]] = {}  # id -> checksum and sample
        self.changed = False  # whether any of them has changed
        self.in_step: set[int] = set()  # ids of those that got gradients since the last update()
        self.repeated = False  # whether any weight has got gradients in two steps
        # Whether all of their graphs surely compute in FP32.
        precision = getattr(torch, "get_float32_matmul_precision", lambda: "highest")  # torch 1.11 has none
        self.in_fp32 = precision() == "highest"

    def add_from_graph(self, roots: list[Any]) -> None:
        """Add the parameters that backward() from these tensors would reach."""
        for node in weights.graph_nodes(self.torch, roots):
            self.in_fp32 = self.in_fp32 and weights.is_in_fp32(self.torch, node)
            leaf = getattr(node, "variable", None)
            if leaf is None:
                continue
            if isinstance(leaf, self.torch.nn.Parameter):
                self.by_id[id(leaf)] = leaf
                self.in_step.add(id(leaf))
            else:
                self.inputs.add(id(leaf))

    def update(self) -> None:
        """Record weights seen for the first time, and note whether another one has changed."""
        self.repeated = self.repeated or not self.in_step.isdisjoint(self.initial)
        self.in_step.clear()
        for key, weight in self.by_id.items():
            if key not in self.initial:
                self.initial[key] = (weights.checksum(self.torch, weight), weights.sample(weight))
            elif not self.changed:
                self.changed = not self.is_unchanged(key)

    def is_unchanged(self, key: int) -> bool:
        """Return whether a weight still has the checksum that it was first seen with."""
        return weights.checksum(self.torch, self.by_id[key]) == self.initial[key][0]

    def moved_far(self) -> bool:
        """Return whether the weights have moved so far that any loss must have changed."""
        samples = [(weights.sample(weight), self.initial[key][1]) for key, weight in self.by_id.items()]
        distance = sum(float((current - first).float().norm()) for current, first in samples)
        return distance > 1e-3 * sum(float(first.float().norm()) for _, first in samples)


class FirstStepsCheck(TrainingCheck):
    """Checks one rank's training from its first backward() until the result is clear.

    A step, as counted here, is the first optimizer step after a backward(): several optimizers may
    step after one backward(), and one of them may step many times.
    """

    name = "training check"

    def __init__(self, torch: ModuleType) -> None:
        self.torch, self.pid = torch, os.getpid()
        self.has_step_hooks = True
        self.trained_in_fp32 = False
        self.step = 0
        self.backward_calls = 0  # since this step began
        self.has_skipped_graphs = False
        self.unexplained_steps = 0  # steps that had to change a weight and did not
        self.losses: list[float] = []
        self.computing = ComputingWeights(torch)
        self.optimizers: list[Any] = []
        self.held: list[Any] = []  # by the optimizers, in this step
        self.with_gradients: set[int] = set()  # ids of held weights that ever had a gradient
        self.first_checksums: dict[int, int] = {}  # by id, as rounded by held_changed()

    # Entry points: called by torch before each backward() and each optimizer step.

    @safely
    def before_backward(self, tensors: Any = None, *_: Any, **__: Any) -> None:
        self.backward_calls += 1
        roots = weights.as_list(self.torch, tensors)
        loss = roots[0] if roots and self.backward_calls == 1 and len(self.losses) < MAX_LOSSES else None
        # One that is averaged over the ranks before the first backward() does not describe the data of this rank.
        is_local = self.losses or not (communication.COUNTS.losses or communication.COUNTS.in_autograd)
        if loss is not None and is_local and loss.numel() == 1 and loss.element_size() >= 4:
            self.losses.append(float(loss.detach()))
        if self.backward_calls in ((1,) if self.step else IPEX_BACKWARD_CALLS):
            self.check_ipex_layers()
        if not self.has_step_hooks and self.backward_calls == IPEX_BACKWARD_CALLS.stop:
            self.finish()
            return
        self.has_skipped_graphs |= self.backward_calls > MAX_GRAPHS
        if self.backward_calls <= MAX_GRAPHS and self.step < CHECK_BEFORE_STEP:
            self.computing.add_from_graph(roots)

    @safely
    def before_step(self, optimizer: Any, *_: Any) -> None:
        if not any(existing is optimizer for existing in self.optimizers):
            self.optimizers.append(optimizer)
        if self.backward_calls:
            self.backward_calls = 0
            self.inspect_weights()

    def finish(self) -> None:
        """Stop checking, and release all tensors."""
        super().finish()
        self.computing = ComputingWeights(self.torch)
        self.optimizers, self.held = [], []

    # Gather what is known, and decide.

    def inspect_weights(self) -> None:
        self.step += 1
        self.held = list(weights.parameters(self.optimizers))
        if not all(weights.is_readable(self.torch, weight) for weight in (*self.held, *self.computing.by_id.values())):
            self.finish()  # sharded weights, as of FSDP
            return
        self.trained_in_fp32 = bool(self.computing.by_id) and self.computing.in_fp32
        self.with_gradients |= {id(weight) for weight in self.held if weight.grad is not None}
        self.computing.update()
        changed, addresses = self.computing.changed, weights.addresses(self.computing.by_id.values())
        if not changed:
            self.unexplained_steps += any(weights.must_change(self.torch, opt, addresses) for opt in self.optimizers)
        if not changed and addresses and addresses.isdisjoint(weights.addresses(self.held)):
            self.check_wrong_weights()
        elif changed and self.step == CHECK_BEFORE_STEP:
            self.check_replaced_weights()
        elif not changed and self.unexplained_steps > 2:
            warn(describe("unchanged-weights", steps=self.step - 1))
            self.finish()
        if changed and self.step >= CHECK_BEFORE_STEP:
            self.check_loss()
        if self.step >= MAX_CHECKED_STEPS:
            self.finish_unless_ipex_pending()

    def finish_unless_ipex_pending(self) -> None:
        """Stop checking, unless detached IPEX layers may still differ visibly after more steps."""
        if not weights.packed_layers()[1]:
            self.finish()

    def held_changed(self, dtype: Any) -> bool:
        """Return whether any held weight has changed visibly after rounding to this precision."""
        checksums = {id(weight): weights.checksum(self.torch, weight.detach().to(dtype)) for weight in self.held}
        changed = any(self.first_checksums.get(k, value) != value for k, value in checksums.items())
        self.first_checksums = {**checksums, **self.first_checksums}
        return changed

    def check_ipex_layers(self) -> None:
        """Raise RankError if the optimizer has changed weights but not their packed copies."""
        packed, detached = weights.packed_layers()
        wrong = [layer for layer in detached if not self.torch.equal(layer.ctx.get_weight(), layer.weight.detach())]
        if wrong:
            raise RankError(describe("detached-ipex-weights", detached=len(wrong), layers=len(packed)))

    def check_wrong_weights(self) -> None:
        """Raise RankError if the optimizer updates weights that the model does not use.

        The optimizer may hold FP32 master weights that are copied to the computing weights. Those
        then change as soon as the update is visible in their own, coarser precision. It may also hold
        inputs, as for adversarial examples and for the transfer of a style. In meta-learning the gradients may be those
        of a new copy of the model in each step.
        """
        if not self.computing.repeated or any(id(weight) in self.computing.inputs for weight in self.held):
            return
        coarsest = min(self.computing.by_id.values(), key=lambda weight: weight.element_size())
        without_gradients = self.with_gradients.isdisjoint(map(id, self.held))
        # A skipped graph may be that of the optimizer's weights.
        is_wrong = (self.held_changed(coarsest.dtype) and not self.has_skipped_graphs) or without_gradients
        if self.step >= CHECK_BEFORE_STEP and is_wrong:
            detail = "which get no gradients" if without_gradients else "which do change"
            counts = {"count": len(self.computing.by_id), "held": len(self.held)}
            raise RankError(describe("wrong-weights", steps=self.step - 1, detail=detail, **counts))

    def check_replaced_weights(self) -> None:
        """Warn if unused optimizer weights have the shapes of weights that nobody updates."""
        held, used = weights.addresses(self.held), weights.addresses(self.computing.by_id.values())
        unheld = [key for key, w in self.computing.by_id.items() if weights.storage_address(w) not in held]
        not_updated = [self.computing.by_id[key] for key in unheld if self.computing.is_unchanged(key)]
        idle = [w for w in self.held if weights.storage_address(w) not in used and id(w) not in self.with_gradients]
        if not_updated and not Counter(tuple(w.shape) for w in not_updated) - Counter(tuple(w.shape) for w in idle):
            warn(describe("replaced-weights", count=len(not_updated)))

    def check_loss(self) -> None:
        """Warn if the loss stays equal while the weights change; otherwise stop checking."""
        if len(set(self.losses)) != 1 or self.losses[0] == 0:
            self.finish_unless_ipex_pending()
        elif len(self.losses) >= MAX_LOSSES:
            if self.computing.moved_far():
                warn(describe("constant-loss", loss=self.losses[0], steps=len(self.losses)))
            self.finish_unless_ipex_pending()
