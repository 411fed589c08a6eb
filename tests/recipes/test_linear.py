"""Check the kernel of linear layers under autocast against FP64 and against torch's."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
orch_kernels = pytest.importorskip("orch_kernels")

from orch_kernels.linear import TORCHS, TORCHS_ADDMM, linear  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

PROBLEM = orch_kernels.problem() or (None if torch.ops.orch.linear_is_fast() else "this CPU has no AMX")
if PROBLEM:
    pytest.skip(f"the kernel of linear layers is NOT tested: {PROBLEM}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("kernels")
BF16 = torch.bfloat16
KINDS = (BF16, BF16, torch.float32)  # in which input, weights and bias are multiplied and added
# Computes one product with oneDNN, which prints it, and trains with 40 lengths.
LENGTHS = """
import torch, orch_kernels
orch_kernels.use()
layer, matrix = torch.nn.Linear(64, 96), torch.ones(64, 64, dtype=torch.bfloat16)
torch.mm(matrix, matrix)
for rows in range(65, 105):
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(rows, 64, requires_grad=True)).sum().backward()
"""


def layer(rows: tuple[int, ...], inputs: int, outputs: int, dtype: Any = torch.float32) -> list[Any]:
    """Return input, weights and bias, which require gradients, and a gradient of the output."""
    tensors = [torch.randn(*rows, inputs).to(dtype), torch.randn(outputs, inputs), torch.randn(outputs)]
    return [*(tensor.requires_grad_() for tensor in tensors), torch.randn(*rows, outputs).to(BF16)]


def add_product(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, weight)


def leaves(*tensors: Any) -> list[Any]:
    return [tensor.detach() for tensor in tensors]


def results(function: Any, tensors: list[Any], gradient: Any) -> list[Any]:
    with torch.autocast("cpu", BF16):
        output = function(*tensors)
    return [output, *torch.autograd.grad(output, tensors, gradient.to(output.dtype))]


def is_kernels(output: Any) -> bool:
    """Return whether an output is a view of one of the kernel."""
    nodes = output.grad_fn.next_functions if output.grad_fn is not None else ()
    return any(node is not None and "orch_linear" in node.name() for node, _ in nodes)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [
        ((64,), 32, 32),
        ((4, 131), 384, 96),
        ((65,), 32, 1536),
        ((2, 3, 67), 96, 160),
        ((300,), 64, 64),
        ((128,), 1536, 32),
        ((100,), 2080, 288),  # more weights than one panel has
    ],
)
def test_results_are_as_exact_as_torchs(rows: Any, inputs: int, outputs: int, dtype: Any) -> None:
    *tensors, gradient = layer(rows, inputs, outputs, dtype)
    exact = [tensor.detach().to(kind).double().requires_grad_() for tensor, kind in zip(tensors, KINDS, strict=True)]
    expected = results(TORCHS, exact, gradient.double())
    torchs, kernels = results(TORCHS, tensors, gradient), results(linear, tensors, gradient)
    assert is_kernels(kernels[0])
    assert [result.dtype for result in kernels] == [BF16, dtype, torch.float32, torch.float32]
    for value, torchs_value, target in zip(kernels, torchs, expected, strict=True):
        assert (value.double() - target).norm() <= 1.01 * (torchs_value.double() - target).norm()
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    assert all(map(torch.equal, kernels, results(linear, tensors, gradient)))
    torch.set_num_threads(threads)
    assert torch.equal(results(linear, tensors[:2], gradient)[2], kernels[2])


@pytest.mark.parametrize("trained", [(True, True, True), (False, True, False), (True, False, True)])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_layers_with_transposed_weights_are_as_exact_as_torchs(dtype: Any, trained: tuple[bool, ...]) -> None:
    x, weight, bias, gradient = layer((131,), 384, 96, dtype)
    arguments = leaves(bias, weight.t().contiguous(), x)
    tensors = [leaf.requires_grad_(flag) for leaf, flag in zip(arguments, trained, strict=True)]
    exact = [leaf.detach().to(kind).double().requires_grad_() for leaf, kind in zip(tensors, KINDS[::-1], strict=True)]
    outputs: list[list[Any]] = []
    for function, arguments in ((TORCHS_ADDMM, exact), (TORCHS_ADDMM, tensors), (torch.addmm, tensors)):
        with torch.autocast("cpu", BF16, enabled=arguments is tensors):
            output = function(arguments[0], arguments[2], arguments[1])
        output.backward(gradient.to(output.dtype))
        outputs.append([output, *(leaf.grad for leaf, flag in zip(arguments, trained, strict=True) if flag)])
        for leaf in tensors:
            leaf.grad = None
    assert is_kernels(outputs[-1][0])
    for target, torchs_value, value in zip(*outputs, strict=True):
        assert (value.dtype, value.stride()) == (torchs_value.dtype, torchs_value.stride())
        assert (value.double() - target).norm() <= 1.01 * (torchs_value.double() - target).norm()


@pytest.mark.parametrize(
    "trained", [(True, False, False), (False, True, False), (True, False, True), (True, True, False)]
)
def test_only_what_is_trained_has_gradients(trained: tuple[bool, ...]) -> None:
    *tensors, gradient = layer((70,), 64, 32)
    expected = results(linear, tensors, gradient)[1:]
    tensors = [tensor.detach().requires_grad_(is_trained) for tensor, is_trained in zip(tensors, trained, strict=True)]
    with torch.autocast("cpu", BF16):
        linear(*tensors).backward(gradient)
    for tensor, target, is_trained in zip(tensors, expected, trained, strict=True):
        assert torch.allclose(tensor.grad, target, rtol=1e-5, atol=1e-5) if is_trained else tensor.grad is None


def test_weights_may_change_before_the_backward_pass() -> None:
    *tensors, gradient = layer((70,), 64, 32)
    expected = results(linear, tensors, gradient)[1]
    with torch.autocast("cpu", BF16):
        output = linear(*tensors)
    tensors[1].data.zero_()
    for options in ({"create_graph": True}, {}):
        assert torch.allclose(torch.autograd.grad(output, tensors[0], gradient, **options)[0], expected, rtol=0.01)


@pytest.mark.parametrize("trained", [(True, True, True), (False, True, True), (True, False, False)])
@pytest.mark.parametrize("rows", [(70,), (2, 3, 67)])
def test_the_same_tensors_are_saved_as_by_torch(rows: Any, trained: tuple[bool, ...]) -> None:
    """Frozen layers save no input, weights are saved once, and checkpointed modules may be computed again by torch."""
    tensors = [tensor.requires_grad_(flag) for tensor, flag in zip(leaves(*layer(rows, 64, 32)), trained, strict=False)]
    saved: list[list[Any]] = []
    for function in (TORCHS, linear):
        saved.append([])
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved[-1].append(tensor), lambda _: None)
        with hooks, torch.autocast("cpu", BF16):
            function(*tensors)
            function(*tensors)
    for value, expected in zip(*saved[::-1], strict=True):
        assert torch.equal(value, expected)
    addresses = [[tensor.data_ptr() for tensor in tensors if tensor.shape == (64, 32)] for tensors in saved]
    assert len({*addresses[1]}) == len({*addresses[0]})


def test_layers_with_transposed_weights_save_what_torch_saves() -> None:
    x, weight, bias, _ = layer((70,), 64, 32)
    tensors = (bias, x, weight.detach().t().contiguous().requires_grad_())
    saved: list[list[Any]] = []
    for function in (TORCHS_ADDMM, torch.addmm):
        saved.append([])
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved[-1].append(tensor), lambda _: None)
        with hooks, torch.autocast("cpu", BF16):
            function(*tensors)
            function(*tensors)
    assert all(any(torch.equal(value, expected) for expected in saved[0]) for value in saved[1])
    addresses = [{tensor.data_ptr() for tensor in tensors if tensor.shape == (64, 32)} for tensors in saved]
    assert len(addresses[1]) == len(addresses[0]) == 1


def test_input_may_change_unnoticed_between_two_layers() -> None:
    """Write each batch into one array of NumPy that the tensors share, as some scripts do."""
    x, weight, _, _ = layer((70,), 64, 32)
    with torch.autocast("cpu", BF16):
        outputs = [linear(x, weight)]
        x.data.mul_(2)
        outputs.append(linear(x, weight))
    assert torch.equal(outputs[1], 2 * outputs[0])


def test_checkpointed_layer_may_be_computed_again_by_torch() -> None:
    gradients = []
    for mode in (contextlib.nullcontext(), FlopCounterMode(display=False)):
        torch.manual_seed(0)
        module, x = torch.nn.Linear(64, 64), torch.randn(2, 70, 64, requires_grad=True)
        with mode, torch.autocast("cpu", BF16):
            output = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
        output.float().square().sum().backward()
        gradients.append(x.grad)
    assert (gradients[1] - gradients[0]).norm() < 0.01 * gradients[0].norm()


def test_what_is_saved_may_be_stored_in_another_order() -> None:
    *tensors, gradient = layer((70,), 64, 32)
    expected = results(linear, tensors, gradient)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.t().contiguous().t()):
        assert all(map(torch.equal, results(linear, tensors, gradient), expected))


def test_gradients_in_batches_are_those_of_single_ones() -> None:
    *tensors, gradient = layer((70,), 64, 32)
    gradients = torch.stack([gradient, -gradient, 2 * gradient])
    with torch.autocast("cpu", BF16):
        output = linear(*tensors)
    batches = torch.autograd.grad(output, tensors, gradients, is_grads_batched=True, retain_graph=True)
    with FlopCounterMode(display=False) as counter:
        single = torch.autograd.grad(output, tensors, gradients[2])
    assert counter.get_total_flops() == 2 * 2 * 70 * 64 * 32
    for batch, expected in zip(batches, single, strict=True):
        assert (batch[2] - expected).norm() < 0.01 * expected.norm()


@pytest.mark.filterwarnings("ignore:TF32")  # of torch.backends.mkldnn.flags()
@pytest.mark.parametrize("in_forward", [True, False])
def test_onednn_may_be_disabled(in_forward: bool) -> None:
    *tensors, gradient = layer((70,), 64, 32)
    expected = results(linear, tensors, gradient)[1]
    with torch.backends.mkldnn.flags(enabled=not in_forward), torch.autocast("cpu", BF16):
        output = linear(*tensors)
        assert is_kernels(output) is not in_forward
    with torch.backends.mkldnn.flags(enabled=in_forward):
        (of_input,) = torch.autograd.grad(output, tensors[0], gradient)
    assert (of_input - expected).norm() < 0.01 * expected.norm()


def test_second_derivatives_are_torchs() -> None:
    *tensors, _ = layer((70,), 64, 32)
    second = []
    for function in (linear, TORCHS):
        with torch.autocast("cpu", BF16):
            first = torch.autograd.grad(function(*tensors).float().pow(2).sum(), tensors, create_graph=True)
        second.append(torch.autograd.grad(sum(part.pow(2).sum() for part in first), tensors))
    for value, expected in zip(*second, strict=True):
        assert (value - expected).norm() < 0.01 * expected.norm()


def test_what_the_kernel_does_not_support_is_torchs() -> None:
    x, weight, bias, _ = layer((70,), 64, 32)
    cases = [(x[:63], weight, bias), (x, weight[:30], bias[:30]), (x, weight.to(BF16), None), (x[0], weight, bias)]
    cases += [(x, weight.t().contiguous().t(), bias), (x.detach(), weight.detach(), bias.detach())]
    assert not is_kernels(linear(x, weight, bias))  # no autocast
    with torch.autocast("cpu", BF16):
        assert is_kernels(torch.nn.Linear(64, 32)(x))
        assert not any(is_kernels(linear(*case)) for case in cases)
        added = (bias, x, weight.detach().t().contiguous().requires_grad_())
        assert is_kernels(torch.addmm(*added))
        unsupported = [(bias.expand(70, 32), *added[1:]), (*added[:2], weight.t()), (bias[:1], *added[1:])]
        assert not any(is_kernels(torch.addmm(*arguments)) for arguments in unsupported)
        assert not any(is_kernels(torch.addmm(*added, **{name: 2})) for name in ("alpha", "beta"))
        with pytest.raises(TypeError, match="addmm"):
            torch.addmm(1, x, weight)
    with torch.autocast("cpu", torch.float16):
        assert not is_kernels(linear(x, weight, bias))
    assert pickle.loads(pickle.dumps(linear)) is torch.nn.functional.linear
    assert pickle.loads(pickle.dumps(torch.addmm)) is torch.addmm


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_scripted_and_compiled_modules_use_torchs() -> None:
    module = torch.nn.Linear(64, 32)
    assert "aten::linear" in str(torch.jit.script(module).inlined_graph)
    with torch.autocast("cpu", BF16):
        assert not is_kernels(torch.compile(module, backend="eager", fullgraph=True)(torch.ones(70, 64)))
        added = (torch.ones(32, requires_grad=True), torch.ones(70, 64), torch.ones(64, 32, requires_grad=True))
        assert not is_kernels(torch.compile(add_product, backend="aot_eager", fullgraph=True)(*added))
    assert "aten::addmm" in str(torch.jit.script(add_product).inlined_graph)


def test_lengths_need_no_products_of_onednn() -> None:
    command, environment = [sys.executable, "-c", LENGTHS], {"ONEDNN_VERBOSE": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.count("exec,cpu") == process.stdout.count("exec,cpu,matmul") == 1
    assert "cpu,brgemm" not in process.stdout


def test_gradient_that_is_a_negative_view_is_torchs() -> None:
    x, weight, bias, gradient = layer((65,), 32, 64)
    expected = results(linear, [x, weight, bias], gradient)
    negative = results(linear, [x, weight, bias], torch._neg_view(-gradient))
    for result, target in zip(negative[1:], expected[1:], strict=True):
        assert (result - target).norm() <= 0.01 * target.norm()
