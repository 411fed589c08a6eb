"""Notice weights that a script changes without an optimizer of torch: by hand, or with torch.func.

The weights are those that gradients are computed for, as torch.autograd.backward() and torch.autograd.grad() show,
which torch.func calls as well. Their values are compared over all ranks after the third change, like those of an
optimizer. Watching ends with the first step of an optimizer: gradients of other weights are then those of inner loops
(meta-learning), of penalties, or of adversarial examples.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from orch_node.rank import communication
from orch_node.rank import weight_comparison as comparing
from orch_node.rank import weight_inspection as weights
from orch_node.rank.checks import TrainingCheck, has_separate_models, safely
from orch_node.rank.hooks import watch_gradients
from orch_node.rank.parallelism import computes_together, fsdp_modules, shared_weights

KEY = "manual"  # in the place of an optimizer's number
WARNED_CHANGE = 20  # inner loops of meta-learning are shorter
UPDATES = f"{comparing.COMPARED_STEP} updates"


def begin(torch: ModuleType, comparison: comparing.WeightComparison) -> ManualUpdates:
    """Watch the weights that this process computes gradients for from now on."""
    updates = ManualUpdates(torch, comparison)
    watch_gradients(torch, "backward", updates.before_backward)
    watch_gradients(torch, "grad", updates.before_grad)
    return updates


class ManualUpdates(TrainingCheck):
    """Watches the weights that this rank computes gradients for until an optimizer makes a step."""

    name = comparing.WeightComparison.name

    def __init__(self, torch: ModuleType, comparison: comparing.WeightComparison) -> None:
        self.torch, self.pid = torch, comparison.pid
        self.comparison = comparison
        self.held: list[Any] = []
        self.samples: list[Any] = []
        # The positions of those that a DistributedDataParallel keeps equal, and of the others.
        self.positions: tuple[list[int], list[int]] = ([], [])
        self.starts: list[comparing.Summary] = []  # of the shared and of the other weights
        self.reference: comparing.State | None = None  # of a rank whose weights have moved apart from those of this one
        self.warning = "separate-models"  # another one if the weights started equal
        self.size = 0  # of the largest weight
        # For each change, whether the script has summed tensors as large as that before.
        self.reduced: list[bool] = []
        self.parameter_shapes: set[tuple[int, ...]] | None = None

    # Entry points: called before gradients are computed, and at the end of the script.

    @safely
    def before_backward(self, tensors: Any = None, *_: Any, **__: Any) -> None:
        nodes = weights.graph_nodes(self.torch, weights.as_list(self.torch, tensors))
        self.inspect([node.variable for node in nodes if hasattr(node, "variable")])

    @safely
    def before_grad(self, outputs: Any = None, inputs: Any = None, *_: Any, **__: Any) -> None:
        self.inspect(weights.as_list(self.torch, inputs))

    def check_end(self) -> None:
        """Check at the end of the script that weights which moved apart were averaged.

        Raises:
            RankError: if this rank has trained alone.
        """
        super().check_end()
        reference = self.reference
        if reference is None or self.comparison.recorded or self.has_averaged() or has_separate_models():
            return
        # Without a model, these may be samples of independent chains, which the script gathers.
        may_be_samples = self.warning == "tensors-apart" and communication.COUNTS.largest_exchange >= self.size
        if self.warning != "separate-models" and not may_be_samples:
            self.comparison.end_never_averaged(reference.rank)
        self.comparison.warn_once(self.warning, reference, UPDATES)

    # Find the weights.

    def weights_among(self, candidates: list[Any]) -> list[Any]:
        """Return those that are weights: parameters, otherwise tensors with the shapes of parameters.

        Other tensors that get gradients are inputs, as for adversarial examples. If there are no parameters at all,
        as in a regression of a few lines, every tensor counts.
        """
        # Functions of torch.func may get weights that were computed from others.
        unwrapped = ((tensor, self.unwrap(tensor)) for tensor in candidates if self.torch.is_tensor(tensor))
        tensors = [inner for tensor, inner in unwrapped if inner is not tensor or inner.is_leaf]
        tensors = [tensor for tensor in tensors if weights.is_readable(self.torch, tensor)]
        parameters = [tensor for tensor in tensors if isinstance(tensor, self.torch.nn.Parameter)]
        if parameters or not tensors:
            return parameters
        if self.parameter_shapes is None:
            parameters = weights.objects_of(self.torch.nn.Parameter)
            is_lazy = self.torch.nn.parameter.is_lazy  # without a shape
            self.parameter_shapes = {tuple(value.shape) for value in parameters if not is_lazy(value)}
        shapes = self.parameter_shapes
        return [tensor for tensor in tensors if not shapes or tuple(tensor.shape) in shapes]

    def unwrap(self, tensor: Any) -> Any:
        """Return the tensor inside those that the transforms of torch.func pass to a function."""
        functorch = getattr(self.torch._C, "_functorch", None)
        while functorch is not None and functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        return tensor

    # Follow their changes.

    def inspect(self, candidates: list[Any]) -> None:
        if self.comparison.recorded:
            self.finish()
            return
        held = self.weights_among(candidates)
        if held and not self.starts:
            self.begin(held)
        elif held and weights.shape_checksum(held) == weights.shape_checksum(self.held):
            self.count_change(held)

    def begin(self, held: list[Any]) -> None:
        if not self.torch.distributed.is_initialized() or fsdp_modules():
            self.finish()
            return
        self.held, self.samples = held, list(map(weights.sample, held))
        shared = shared_weights(self.torch)
        for position, weight in enumerate(held):
            self.positions[id(weight) not in shared].append(position)
        self.starts = [comparing.summarize(self.torch, part) for part in self.parts()]
        self.size = comparing.largest_size(held)
        self.comparison.operations_at_start = communication.operations(self.torch)
        communication.COUNTS.reset_largest()

    def parts(self) -> list[list[Any]]:
        """Return the shared and the other weights."""
        return [[self.held[position] for position in part] for part in self.positions]

    def count_change(self, held: list[Any]) -> None:
        samples = list(map(weights.sample, held))
        if all(map(self.torch.equal, samples, self.samples)):
            return
        self.held, self.samples = held, samples
        self.reduced.append(self.has_reduced())
        communication.COUNTS.reset_largest()
        if len(self.reduced) == comparing.COMPARED_STEP:
            self.compare()
        elif len(self.reduced) == WARNED_CHANGE:
            self.finish()
            if self.reference and not self.has_averaged():
                self.comparison.warn_once(self.warning, self.reference, UPDATES)

    def finish(self) -> None:
        """Stop watching, and release all tensors."""
        super().finish()
        self.held, self.samples = [], []

    def compare(self) -> None:
        """Compare the weights after some changes with those of the reference."""
        comparison = self.comparison
        for number, part in enumerate(self.parts()):
            state = comparing.State(comparison.rank, self.starts[number], comparing.summarize(self.torch, part))
            reference = comparison.exchange(KEY, f"updated/{number}", state)
            if comparison.moved_apart(state, reference, part, UPDATES) and not computes_together(self.torch):
                self.reference = reference
                if state.starts_like(reference):  # no parameter has the shape of these weights
                    self.warning = "tensors-apart" if self.parameter_shapes == set() else "apart"

    def has_averaged(self) -> bool:
        """Return whether the script may have averaged weights: it has not only summed gradients after each update."""
        return not all(self.reduced) and any((*self.reduced, self.has_reduced()))

    def has_reduced(self) -> bool:
        """Return whether the script has summed tensors as large as the weights over ranks since the last change."""
        return communication.COUNTS.largest_reduction >= self.size
