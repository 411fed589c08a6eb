"""Check that the kernel's dropout has the semantics, statistics and gradients of torch's, and can be replayed."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

orch_kernels = pytest.importorskip("orch_kernels")

from orch_kernels.dropout import TORCHS, dropout  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.overrides import BaseTorchFunctionMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

if problem := orch_kernels.problem():
    pytest.skip(f"dropout's kernel is NOT tested: {problem}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("kernels")
F = torch.nn.functional
ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def threefry(counters: Any, key: tuple[int, ...]) -> Any:
    """Return Threefry4x32 of counters [n, 4] as Salmon et al. 2011 describe it, with 13 rounds; all are uint32."""
    parity = 0x1BD11BDA
    for word in key:
        parity ^= word
    keys = np.array([*key, parity], dtype=np.uint32)
    x = (counters + keys[:4]).astype(np.uint32)
    for number in range(13):
        for index, (target, source) in enumerate(((0, 1), (2, 3))):
            source = source if number % 2 == 0 else 4 - source
            rotation = ROTATIONS[number % 8][index]
            x[:, target] += x[:, source]
            x[:, source] = (x[:, source] << rotation | x[:, source] >> (32 - rotation)) ^ x[:, target]
        if number % 4 == 3:
            n = number // 4 + 1
            x += keys[[(n + i) % 5 for i in range(4)]]
            x[:, 3] += np.uint32(n)
    return x


def expected_mask(size: int, p: float, seed: int) -> torch.Tensor:
    """Return which elements the kernel must keep, computed with numpy."""
    blocks = -(-size // 64)
    counters = np.zeros((blocks * 16, 4), dtype=np.uint32)
    counters[:, 0] = np.arange(blocks * 16)
    numbers = threefry(counters, (seed & 0xFFFFFFFF, seed >> 32, 0, 0))
    in_order = numbers.reshape(blocks, 16, 4).transpose(0, 2, 1).reshape(-1)[:size]
    return torch.from_numpy(in_order >= np.uint32(round(p * 2**32)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_keeps_the_elements_of_the_reference(dtype: torch.dtype) -> None:
    for seed, size in itertools.product((0, 2**63 - 1), (1, 15, 64, 65, 70_001)):
        x = torch.ones(size, dtype=dtype)
        result = torch.ops.orch.dropout_by_seed(x, 0.3, seed)
        assert torch.equal(result != 0, expected_mask(size, 0.3, seed)), (seed, size)


def test_threads_do_not_change_the_kept_elements() -> None:
    x, before = torch.ones(300_001), torch.get_num_threads()
    expected = expected_mask(len(x), 0.1, 5)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        assert torch.equal(torch.ops.orch.dropout_by_seed(x, 0.1, 5) != 0, expected)
    torch.set_num_threads(before)


@pytest.mark.parametrize("p", [0.9, 1 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kept_elements_have_torchs_values_bit_for_bit(p: float, dtype: torch.dtype) -> None:
    x = torch.randn(10_000, dtype=dtype)
    result, expected = dropout(x, p), TORCHS(x, p)
    overlap = (result != 0) & (expected != 0)
    assert overlap.sum() > 50
    assert torch.equal(result[overlap], expected[overlap])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_dtypes_are_scaled_in_float_and_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(10_000).to(dtype)
    result = dropout(x, 0.1)
    is_kept = result != 0
    assert torch.equal(result[is_kept], (x.float() * (1 / torch.tensor(1 - 0.1))).to(dtype)[is_kept])


def test_seed_and_random_state_of_torch_reproduce_the_draws() -> None:
    x = torch.ones(1000)
    torch.manual_seed(7)
    first, state, second = dropout(x), torch.get_rng_state(), dropout(x)
    torch.manual_seed(7)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x), second)
    torch.manual_seed(8)
    assert not torch.equal(dropout(x), first)


def test_in_place_changes_the_tensor_and_its_gradient() -> None:
    leaf = torch.ones(1000, requires_grad=True)
    x = leaf * 1
    torch.manual_seed(1)
    result = dropout(x, 0.25, inplace=True)
    assert result is x
    result.sum().backward()
    assert torch.equal(leaf.grad, result.detach())
    with pytest.raises(RuntimeError, match="leaf Variable"):
        dropout(leaf, 0.25, inplace=True)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(50, 30),
        lambda x: x.view(5, 10, 5, 6).to(memory_format=torch.channels_last),
    ],
)
def test_strides_do_not_matter(view: Any) -> None:
    base = torch.randn(50, 30, dtype=torch.float64, requires_grad=True)
    x = view(base)
    torch.manual_seed(2)
    result = dropout(x, 0.4)
    torch.manual_seed(2)
    assert torch.equal(result, dropout(x.contiguous(), 0.4))
    assert result.stride() == TORCHS(x, 0.4).stride()
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient != 0, result != 0)


def test_gradients_use_the_mask_of_the_forward_pass() -> None:
    x = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)

    def replayed(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return F.dropout(x.t(), 0.35)

    assert torch.autograd.gradcheck(replayed, x)
    assert torch.autograd.gradgradcheck(replayed, x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_module_draws_the_same_mask_again(reentrant: bool) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = F.dropout(x @ torch.ones(8, 64), 0.5).view(1, 1, 4, 64)
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    def in_forward_only(x: Any) -> Any:
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with torch.device("cpu"), BaseTorchFunctionMode(), FlopCounterMode(display=False), math:
            return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant)

    net, gradients = Net(), []
    for call in (net, in_forward_only):
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        torch.manual_seed(13)
        call(x).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("kind", ["mode", "subclass"])
def test_functions_have_one_identity_for_whoever_overrides_them(kind: str) -> None:
    """Libraries such as torchao compare them with what torch.nn.functional has, and keep tables of them."""
    overridden = []

    class Mode(BaseTorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            overridden.append(function)
            return super().__torch_function__(function, types, args, kwargs)

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            overridden.append(function)
            return super().__torch_function__(function, types, args, kwargs)

    x = torch.ones(1, 1, 64, 64)
    x, mode = (x, Mode()) if kind == "mode" else (x.as_subclass(Subclass), contextlib.nullcontext())
    with mode:
        F.scaled_dot_product_attention(F.dropout(F.linear(x, x[0, 0])), x, x)
    assert {F.linear, F.dropout, F.scaled_dot_product_attention} <= {*overridden}


def test_make_fx_traces_torchs_dropout() -> None:
    graph = make_fx(lambda x: F.dropout(x, 0.5))(torch.ones(2000))
    assert "dropout_by_seed" not in str(graph.graph)
    assert not torch.equal(graph(torch.ones(2000)), graph(torch.ones(2000))), "the units are not part of the graph"


def test_modules_and_functions_use_the_kernel_only_in_training() -> None:
    layer = torch.nn.Dropout(0.5)
    x = torch.ones(2000)
    torch.manual_seed(1)
    expected = torch.ops.orch.dropout(x, 0.5)
    for call in (layer, lambda x: F.dropout(x, 0.5)):
        torch.manual_seed(1)
        assert torch.equal(call(x), expected)
    assert layer.eval()(x) is x
    pickled = pickle.dumps([F.dropout, F.scaled_dot_product_attention])
    orch_kernels.restore()
    assert pickle.loads(pickled) == [F.dropout, F.scaled_dot_product_attention]  # as in other processes
    torch.manual_seed(1)
    assert not torch.equal(layer.train()(x), expected)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_scripts_traces_and_transformations_use_torchs_dropout() -> None:
    x = torch.ones(100)
    net = torch.nn.Dropout(0.5)
    assert torch.jit.script(net)(x).shape == x.shape
    assert "aten::dropout" in str(torch.jit.trace(net, x, check_trace=False).graph)
    assert len(torch.compile(net, backend="eager", fullgraph=True)(x)) == 100
    rows = torch.func.vmap(lambda row: F.dropout(row, 0.5), randomness="different")(torch.ones(4, 1000))
    assert len({tuple(row.tolist()) for row in rows}) == 4
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(100))
        assert torch.autograd.forward_ad.unpack_dual(F.dropout(dual, 0.5)).tangent is not None


def test_weights_of_an_embedding_with_sparse_gradients_may_be_dropped() -> None:
    weights, ids = torch.randn(9, 70, requires_grad=True), torch.tensor([1, 3, 3])
    dropped = F.dropout(weights, 0.5)
    F.embedding(ids, dropped, sparse=True).sum().backward()
    assert weights.grad.is_sparse
    expected = torch.zeros(9, 70).index_add_(0, ids, torch.ones(3, 70)) * (dropped.detach() / weights.detach())
    torch.testing.assert_close(weights.grad.to_dense(), expected)
