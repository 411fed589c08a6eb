"""Check the activations that replace torch's against FP64, and that everything else remains torch's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

orch_kernels = pytest.importorskip("orch_kernels")

if problem := orch_kernels.problem():
    pytest.skip(f"activations are NOT tested: {problem}", allow_module_level=True)

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": torch.nn.functional.gelu,
    "tanh_gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}


@pytest.fixture(autouse=True)
def activations() -> Iterator[None]:
    torch.ops.orch.replace_activations(True)
    torch.manual_seed(0)
    yield
    torch.ops.orch.replace_activations(False)


def derivatives(activation: Callable[[Any], Any], inputs: Any, order: int) -> list[Any]:
    """Return the values and the derivatives up to this order."""
    results = [activation(inputs)]
    for number in range(order):
        # With a graph, torch computes the gradient of silu from other functions.
        (gradient,) = torch.autograd.grad(results[-1].sum(), inputs, create_graph=number + 1 < order)
        results.append(gradient)
    return [result.detach() for result in results]


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"),
    [
        pytest.param(torch.bfloat16, 1 / 256, 2e-6, id="bf16"),  # half a unit in the last place
        pytest.param(torch.float32, 3e-6, 2e-6, id="fp32"),
    ],
)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients_equal_fp64_within_rounding(
    name: str, dtype: Any, relative: float, absolute: float
) -> None:
    sizes = torch.cat([torch.logspace(-30, 1.2, 5003), torch.linspace(0, 12, 3001)])
    inputs = torch.cat([sizes, -sizes]).to(dtype).requires_grad_()
    exact = inputs.detach().double().requires_grad_()
    order = int(name != "tanh")  # whose gradient torch computes from the rounded value
    for result, expected in zip(
        derivatives(ACTIVATIONS[name], inputs, order), derivatives(ACTIVATIONS[name], exact, order), strict=True
    ):
        assert result.dtype == dtype
        errors = (result.double() - expected).abs() - relative * expected.abs()
        assert float(errors.max()) <= absolute


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_of_second_order_are_torchs_within_rounding(name: str) -> None:
    inputs = torch.randn(1000, requires_grad=True)
    replaced = derivatives(ACTIVATIONS[name], inputs, 2)
    torch.ops.orch.replace_activations(False)
    for result, expected in zip(replaced, derivatives(ACTIVATIONS[name], inputs, 2), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("number", [0.0, -0.0, 100.0, -100.0, 1e30, -1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_extreme_numbers_give_what_torch_gives(name: str, dtype: Any, number: float) -> None:
    inputs = torch.full((70,), number, dtype=dtype, requires_grad=True)
    replaced = derivatives(ACTIVATIONS[name], inputs, 1)
    torch.ops.orch.replace_activations(False)
    for result, expected in zip(replaced, derivatives(ACTIVATIONS[name], inputs, 1), strict=True):
        assert torch.equal(result.nan_to_num(7), expected.nan_to_num(7)), (result[0], expected[0])


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(torch.randn(64, 64).t(), id="transposed"),
        pytest.param(torch.randn(64, 64).bfloat16()[:, ::2], id="strided"),
        pytest.param(torch.randn(64).double(), id="fp64"),
        pytest.param(torch.randn(64).half(), id="fp16"),
        pytest.param(torch.randn(0), id="empty"),
    ],
)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_other_tensors_remain_torchs_bit_for_bit(name: str, inputs: Any) -> None:
    inputs = inputs.detach().requires_grad_()
    replaced = derivatives(ACTIVATIONS[name], inputs, 1)
    torch.ops.orch.replace_activations(False)
    for result, expected in zip(replaced, derivatives(ACTIVATIONS[name], inputs, 1), strict=True):
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()


def test_threads_do_not_change_a_bit_and_restoring_is_silent() -> None:
    inputs, threads = torch.randn(300_001).bfloat16(), torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            torch.ops.orch.replace_activations(True)
            results.append([activation(inputs) for activation in ACTIVATIONS.values()])
            torch.ops.orch.replace_activations(False)
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))
    with pytest.raises(RuntimeError, match="approximate argument"):
        torch.nn.functional.gelu(inputs, approximate="sigmoid")
