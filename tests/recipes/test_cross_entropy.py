"""Check the loss of many classes against torch's, its gradients, and that all other losses remain torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

orch_kernels = pytest.importorskip("orch_kernels")

from torch.nn import functional as F  # noqa: E402

if problem := orch_kernels.problem():
    pytest.skip(f"the loss is NOT tested: {problem}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("kernels")
CLASSES = 1031
KERNELS = "CrossEntropy"  # in the name of what computes the gradient


def example(dtype: Any = torch.float32, rows: int = 17) -> tuple[Any, Any]:
    torch.manual_seed(0)
    logits = (torch.randn(rows, CLASSES) * 4).to(dtype).requires_grad_()
    targets = torch.randint(0, CLASSES, (rows,))
    targets[::5] = -100
    return logits, targets


def results(logits: Any, call: Callable[[], Any]) -> list[Any]:
    """Return the loss, its gradients, and the gradients of theirs."""
    loss = call()
    (gradient,) = torch.autograd.grad(loss.square().sum(), logits)
    (again,) = torch.autograd.grad(call().square().sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(again.square().sum(), logits)
    return [loss, gradient, second]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_equal_torchs(reduction: str, dtype: Any) -> None:
    logits, targets = example(dtype)
    exact = logits.detach().double().requires_grad_()
    orch_kernels.restore()
    expected = results(exact, lambda: F.cross_entropy(exact, targets, reduction=reduction))
    orch_kernels.use()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        computed = results(logits, lambda: F.cross_entropy(logits, targets, reduction=reduction))
        assert KERNELS in F.cross_entropy(logits, targets, reduction="none").grad_fn.name()
    assert [result.dtype for result in computed] == [torch.float32, dtype, dtype]
    tolerance = 2e-6 if dtype == torch.float32 else 0.01
    for result, reference in zip(computed, expected, strict=True):
        assert (result.double() - reference).norm() <= tolerance * reference.norm()


@pytest.mark.parametrize("shift", [1e4, -1e4, 0.0])
def test_large_and_infinite_logits_lose_no_precision(shift: float) -> None:
    logits, targets = example()
    with torch.no_grad():
        logits += shift
        logits[1, 3] = -torch.inf
        logits[2] = 0
        logits[2, 5] = 200  # all others have the probability 0
        targets[2] = 5
    exact = logits.detach().double().requires_grad_()
    loss, gradient, _ = results(logits, lambda: F.cross_entropy(logits, targets))
    expected, reference, _ = results(exact, lambda: F.cross_entropy(exact, targets))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (gradient - reference).abs().max() < 1e-6


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_losses_without_a_value_are_nan(number: float) -> None:
    logits, targets = example()
    with torch.no_grad():
        logits[1, 3] = number
    loss = F.cross_entropy(logits, targets, reduction="none")
    assert loss[1].isnan()
    assert not loss[2:].isnan().any()
    assert torch.autograd.grad(loss.sum(), logits)[0][1].isnan().all()
    assert F.cross_entropy(logits, torch.full_like(targets, -100)).isnan()


def test_threads_and_strides_change_no_bit() -> None:
    logits, targets = example(rows=64)
    strided = torch.stack([logits.detach()] * 2, 2)[:, :, 1].requires_grad_()
    computed, threads = [], torch.get_num_threads()
    for count, used in ((1, logits), (3, logits), (3, strided)):
        torch.set_num_threads(count)
        loss = F.cross_entropy(used, targets)
        computed.append((loss, *torch.autograd.grad(loss, used)))
    torch.set_num_threads(threads)
    for losses_and_gradients in computed[1:]:
        assert all(map(torch.equal, computed[0], losses_and_gradients))


def test_targets_out_of_bounds_raise_torchs_error() -> None:
    logits, targets = example()
    for target in (-1, CLASSES):
        targets[3] = target
        with pytest.raises(IndexError, match=f"Target {target} is out of bounds"):
            F.cross_entropy(logits, targets)


def test_logits_that_change_before_the_gradient_raise_an_error() -> None:
    logits, targets = example()
    scaled = logits * 2
    loss = F.cross_entropy(scaled, targets)
    scaled.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda logits, targets: F.cross_entropy(logits, targets, label_smoothing=0.1), id="smoothing"),
        pytest.param(lambda logits, targets: F.cross_entropy(logits, targets, torch.ones(CLASSES)), id="weights"),
        pytest.param(lambda logits, _: F.cross_entropy(logits, logits.detach().softmax(1)), id="probabilities"),
        pytest.param(lambda logits, targets: F.cross_entropy(logits[:, :50], targets % 50), id="few classes"),
        pytest.param(lambda logits, targets: F.cross_entropy(logits[None].mT, targets[None]), id="more dimensions"),
        pytest.param(lambda logits, targets: F.cross_entropy(logits.bfloat16(), targets), id="BF16"),
    ],
)
def test_other_losses_are_torchs(call: Callable[[Any, Any], Any]) -> None:
    logits, targets = example()
    with_kernels = results(logits, lambda: call(logits, targets.abs()))
    orch_kernels.restore()
    assert all(map(torch.equal, with_kernels, results(logits, lambda: call(logits, targets.abs()))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_scripted_compiled_and_mapped_losses_are_torchs() -> None:
    logits, targets = example()
    loss = torch.nn.CrossEntropyLoss()
    expected = loss(logits, targets)
    scripted = torch.jit.script(loss)
    assert "aten::cross_entropy_loss" in str(scripted.inlined_graph)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    mapped = torch.func.grad(lambda tensor: F.cross_entropy(tensor, targets))
    for result in (scripted(logits, targets), compiled(logits, targets)):
        assert result.item() == pytest.approx(expected.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(expected, logits)
    assert torch.allclose(mapped(logits.detach()), gradient, atol=1e-7)
