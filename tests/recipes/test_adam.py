"""Check that Adam and AdamW use the fused step where it computes the same, and torch's otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

orch_kernels = pytest.importorskip("orch_kernels")

if problem := orch_kernels.problem():
    pytest.skip(f"Adam is NOT tested: {problem}", allow_module_level=True)

SHAPES = ((33, 65), (7,), (), (2, 3, 5))
FUSED = "aten::_fused_adam"  # torch.optim.AdamW's ends with w


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    yield
    orch_kernels.restore()


def parameters(dtype: Any = None) -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype or torch.float32)) for shape in SHAPES]


def train(optimizer: Any, trained: list[Any], steps: int = 5) -> set[str]:
    """Train with random gradients, and return the names of the operators."""
    torch.manual_seed(1)
    with torch.profiler.profile() as profile:
        for _ in range(steps):
            for parameter in trained:
                parameter.grad = torch.randn(parameter.shape, dtype=torch.float64).to(parameter.dtype)
            optimizer.step()
    return {event.key for event in profile.key_averages()}


def trained(make: Callable[[list[Any]], Any], dtype: Any = None) -> tuple[list[Any], set[str]]:
    tensors = parameters(dtype)
    return tensors, train(make(tensors), tensors)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"foreach": True, "weight_decay": 0.1}, id="foreach"),
        pytest.param({"amsgrad": True, "maximize": True, "betas": (0.3, 0.5)}, id="amsgrad"),
    ],
)
def test_parameters_equal_torchs(kind: Any, settings: dict[str, Any]) -> None:
    expected, without = trained(lambda tensors: kind(tensors, lr=0.1, **settings))
    assert not any(name.startswith(FUSED) for name in without)
    orch_kernels.use()
    results, operators = trained(lambda tensors: kind(tensors, lr=0.1, **settings))
    assert FUSED + ("w_" if kind is torch.optim.AdamW else "_") in operators
    for result, exact in zip(results, expected, strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_continues_with_and_without_the_kernels() -> None:
    def continued(first: Callable[[], None], second: Callable[[], None]) -> tuple[list[Any], dict[str, Any]]:
        tensors = parameters()
        first()
        optimizer = torch.optim.AdamW(tensors, lr=0.1)
        train(optimizer, tensors)
        second()
        other = torch.optim.AdamW(tensors, lr=0.1)
        other.load_state_dict(optimizer.state_dict())
        train(other, tensors)
        return tensors, other.state_dict()["param_groups"][0]

    expected, group = continued(orch_kernels.restore, orch_kernels.restore)
    for first, second in ((orch_kernels.use, orch_kernels.restore), (orch_kernels.restore, orch_kernels.use)):
        results, settings = continued(first, second)
        assert settings == group, "the checkpoint says which kernels wrote it"
        for result, exact in zip(results, expected, strict=True):
            torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-5)


def transposed(tensors: list[Any]) -> Any:
    tensors[0].data = tensors[0].data.t().contiguous().t()
    return torch.optim.AdamW(tensors, lr=0.1)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        pytest.param(transposed, torch.float32, id="transposed"),
        pytest.param(lambda tensors: torch.optim.AdamW(tensors, lr=0.1), torch.float64, id="fp64"),
        pytest.param(lambda tensors: torch.optim.Adam(tensors, lr=torch.tensor(0.1)), torch.float32, id="tensor"),
    ],
)
def test_other_steps_are_torchs(make: Callable[[list[Any]], Any], dtype: Any) -> None:
    expected, _ = trained(make, dtype)
    orch_kernels.use()
    results, operators = trained(make, dtype)
    assert not any(name.startswith(FUSED) for name in operators)
    for result, exact in zip(results, expected, strict=True):
        assert torch.equal(result, exact)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_step_is_torchs() -> None:
    orch_kernels.use()
    tensors = parameters()
    optimizer = torch.optim.AdamW(tensors, lr=0.1)
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    seen: list[str] = []

    def record(graph: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compile(optimizer.step, backend=record)()
    assert seen
    assert not [name for name in seen if "_fused_adam" in name]
