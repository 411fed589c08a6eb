"""Check the FP32 products that replace torch's against products in FP64, and that everything else remains torch's."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

orch_kernels = pytest.importorskip("orch_kernels")

if problem := orch_kernels.problem():
    pytest.skip(f"products are NOT tested: {problem}", allow_module_level=True)


@pytest.fixture(autouse=True)
def products() -> Iterator[None]:
    torch.ops.orch.replace_products(True, on_any_cpu=True)
    torch.manual_seed(0)
    yield
    torch.ops.orch.replace_products(False)


def transposed(rows: int, columns: int) -> Any:
    return torch.randn(columns, rows).t()


def with_gaps(rows: int, columns: int) -> Any:
    return torch.randn(rows, 2 * columns + 1)[:, :columns]


def strided(rows: int, columns: int) -> Any:
    return torch.randn(rows, 2 * columns)[:, ::2]


def expanded(rows: int, columns: int) -> Any:
    return torch.randn(rows, 1).expand(rows, columns)


LAYOUTS = [torch.randn, transposed, with_gaps, strided, expanded]


@pytest.mark.parametrize("first_layout", LAYOUTS)
@pytest.mark.parametrize("second_layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(150, 333, 111), (32, 2048, 32), (4096, 2, 1024)])
def test_products_of_all_layouts_equal_torch_within_rounding(first_layout: Any, second_layout: Any, shape: Any) -> None:
    rows, inner, columns = shape
    a, b = first_layout(rows, inner), second_layout(inner, columns)
    bias = torch.randn(columns)
    expected = a.double() @ b.double()
    bound = 1e-6 * float(a.double().norm(dim=1).max() * b.double().norm(dim=0).max())
    for result, exact in ((a @ b, expected), (torch.addmm(bias, a, b), expected + bias.double())):
        assert result.dtype == torch.float32
        assert result.is_contiguous()
        assert float((result.double() - exact).abs().max()) <= bound


def test_layers_have_the_gradients_of_torch_also_of_second_order() -> None:
    layer = torch.nn.Linear(200, 160)
    inputs = torch.randn(2, 100, 200, requires_grad=True)

    def gradients() -> list[Any]:
        first = torch.autograd.grad(layer(inputs).square().sum(), [inputs, *layer.parameters()], create_graph=True)
        return [*first, *torch.autograd.grad(first[0].square().sum(), [inputs, layer.weight])]

    replaced = gradients()
    torch.ops.orch.replace_products(False)
    for gradient, expected in zip(replaced, gradients(), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5 * float(expected.detach().abs().max()))
        assert gradient.norm() > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a[:4] @ a,
        lambda a: a[:31] @ a.repeat(1, 4),
        lambda a: a.repeat(4, 1) @ a[:, :31],
        lambda a: a.reshape(-1, 1)[:2048] @ a.reshape(1, -1)[:, :2048],
        lambda a: a.double() @ a.double(),
        lambda a: a.to(torch.complex64) @ a.to(torch.complex64),
        lambda a: a[:, :0] @ a[:0],
        lambda a: torch.addmm(a[0], a, a, beta=0.5),
        lambda a: torch.addmm(a, a, a, alpha=2),
        lambda a: torch.addmm(a[:, :1], a, a),
        lambda a: torch.mm(a, a, out=torch.empty(256, 256)),
        lambda a: a @ a[0],
        lambda a: a.reshape(4, 64, 256) @ a.reshape(4, 256, 64),
    ],
)
def test_other_products_remain_torchs_bit_for_bit(call: Any) -> None:
    a = torch.randn(256, 256)
    result = call(a)
    torch.ops.orch.replace_products(False)
    assert torch.equal(result, call(a))


def test_invalid_products_raise_torchs_errors() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.randn(256, 256) @ torch.randn(255, 256)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.randn(256, 256) @ torch.randn(256, 256).double()


def test_infinite_and_invalid_numbers_spread_as_in_torch() -> None:
    a, b = torch.ones(160, 160), torch.ones(160, 160)
    a[3, 5], b[7, 9] = torch.inf, torch.nan
    result = a @ b
    assert result[3].isinf().sum() == 159
    assert result[:, 9].isnan().all()
    assert result.isnan().sum() == 160


def test_replacing_is_silent_and_restoring_leaves_torchs_products() -> None:
    a = torch.randn(512, 512)
    torch.ops.orch.replace_products(False)
    torchs = a @ a
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            torch.ops.orch.replace_products(True, on_any_cpu=True)
            torch.testing.assert_close(a @ a, torchs, rtol=1e-4, atol=1e-4)
            torch.ops.orch.replace_products(False)
            assert torch.equal(a @ a, torchs)


PRODUCT = """
import sys, torch, orch_kernels
a = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
torchs = a @ a
orch_kernels.use()
with torch.backends.mkldnn.flags(enabled=sys.argv[1] == "on"):
    print(torch.equal(a @ a, torchs))
"""


def is_product_torchs(onednn: str, **variables: str) -> bool:
    command = [sys.executable, "-c", PRODUCT, onednn]
    return subprocess.check_output(command, env=os.environ | variables, text=True).strip() == "True"


def test_kernels_use_them_only_on_cpus_of_amd_and_with_onednn() -> None:
    with open("/proc/cpuinfo") as file:
        replaces = "AuthenticAMD" in file.read() and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    assert is_product_torchs("on") is not replaces
    assert is_product_torchs("on", ATEN_CPU_CAPABILITY="avx2") is not replaces
    assert is_product_torchs("on", ATEN_CPU_CAPABILITY="default")
    assert is_product_torchs("off")
