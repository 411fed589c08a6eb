"""Check the kernel's attention against torch's and eager attention, and its dropout by statistics and gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

orch_kernels = pytest.importorskip("orch_kernels")

from orch_kernels import attention as module  # noqa: E402
from orch_kernels import attention_of_packed  # noqa: E402

if problem := orch_kernels.problem():
    pytest.skip(f"attention's kernel is NOT tested: {problem}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("kernels")
F = torch.nn.functional
LOWEST = torch.finfo(torch.float32).min


def inputs(shape: tuple[int, int, int, int, int, int], dtype: torch.dtype) -> tuple[list[Any], Any]:
    """Return query, key and value as transformers lays them out, and a gradient of the output."""
    batch, heads, kv_heads, queries, keys, depth = shape
    sizes = [(queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads)]
    tensors = [torch.randn(batch, rows, count, depth).to(dtype).transpose(1, 2) for rows, count in sizes]
    return [tensor.requires_grad_() for tensor in tensors[:3]], tensors[3]


def eager(query: Any, key: Any, value: Any, mask: Any = None, scale: float | None = None) -> Any:
    """Return the attention, computed in FP64 by definition; rows without keys give 0."""
    query, key, value = (tensor.double() for tensor in (query, key, value))
    key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    return torch.softmax(scores, -1).masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0) @ value


def with_gradients(output: Any, tensors: list[Any], gradient: Any) -> list[Any]:
    return [output, *torch.autograd.grad(output, tensors, gradient.to(output.dtype))]


def largest_error(results: list[Any], expected: list[Any]) -> float:
    differences = [a.detach().double() - b.detach().double() for a, b in zip(results, expected, strict=True)]
    return float(torch.stack([difference.abs().max() for difference in differences]).max())  # NaN if any is NaN


def causal(queries: int, keys: int) -> Any:
    return torch.ones(queries, keys, dtype=torch.bool).tril()


ROW_WITHOUT_KEYS = torch.arange(70)[:, None] != 5
KEYS = torch.arange(600)
SHAPES_AND_MASKS: dict[str, Any] = {
    "plain": ((2, 3, 3, 70, 70, 32), None),
    "grouped": ((1, 4, 2, 33, 129, 20), None),
    "long": ((1, 2, 1, 530, 130, 64), None),
    "padding": ((2, 4, 2, 133, 129, 20), lambda: (torch.rand(2, 1, 1, 129) > 0.3).expand(2, 4, 133, 129)),
    "boolean": ((2, 4, 4, 133, 129, 20), lambda: torch.rand(2, 1, 133, 129) > 0.3),
    "additive": ((2, 4, 4, 133, 129, 20), lambda: torch.randn(4, 133, 129)),
    "by query": ((2, 4, 4, 133, 129, 20), lambda: torch.randn(133, 1)),
    "lowest": ((2, 2, 2, 70, 65, 16), lambda: torch.tensor([[0.0] * 50 + [LOWEST] * 15])),
    "all lowest": ((1, 2, 2, 9, 40, 16), lambda: torch.full((1, 1, 1, 40), LOWEST)),
    "nearly overflowing": ((1, 2, 2, 9, 40, 16), lambda: torch.full((1, 1, 1, 40), 88.7)),
    "chunk without keys": ((1, 2, 1, 330, 1090, 16), lambda: (torch.rand(330, 1090) > 0.3).index_fill_(1, KEYS, False)),
    "row without keys": ((2, 2, 2, 70, 65, 16), lambda: causal(70, 65).roll((1, 1), (0, 1)) & ROW_WITHOUT_KEYS),
}


@pytest.mark.parametrize(("shape", "mask"), SHAPES_AND_MASKS.values(), ids=SHAPES_AND_MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_and_gradients_are_those_of_eager_attention(shape: Any, mask: Any, dtype: torch.dtype) -> None:
    tensors, gradient = inputs(shape, dtype)
    added = mask() if mask else None
    expected = with_gradients(eager(*tensors, added), tensors, gradient)
    results = with_gradients(torch.ops.orch.attention(*tensors, added), tensors, gradient)
    if dtype == torch.float32:
        assert largest_error(results, expected) < 1e-5
        return
    if added is not None and added.is_floating_point():
        added = added.clamp(torch.finfo(dtype).min).to(dtype)
    torchs = with_gradients(module.TORCHS(*tensors, added, enable_gqa=shape[1] != shape[2]), tensors, gradient)
    assert largest_error(results, expected) <= 1.1 * largest_error(torchs, expected) + torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(0, 2, 2, 70, 65, 16), (2, 2, 2, 0, 65, 16), (2, 2, 2, 70, 0, 16)])
def test_masks_of_empty_inputs(shape: Any) -> None:
    tensors, gradient = inputs(shape, torch.float32)
    added = torch.zeros(1, 1, 1, shape[4]).expand(shape[0], 1, shape[3], shape[4])
    results = with_gradients(torch.ops.orch.attention(*tensors, added, 0.5), tensors, gradient)
    assert [result.shape for result in results] == [tensor.shape for tensor in (tensors[0], *tensors)]
    assert not any(result.any() for result in results)


@pytest.mark.parametrize("shape", [(1, 4, 2, 133, 129, 20), (1, 2, 2, 700, 1100, 16)])
def test_causal_attention_and_scale(shape: Any) -> None:
    tensors, gradient = inputs(shape, torch.float32)
    output = torch.ops.orch.attention(*tensors, causal=True, scale=0.3)
    expected = with_gradients(eager(*tensors, causal(shape[3], shape[4]), 0.3), tensors, gradient)
    assert largest_error(with_gradients(output, tensors, gradient), expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_sequences_are_those_of_the_batch(dtype: torch.dtype) -> None:
    lengths, key_lengths = (3, 0, 70, 65), (40, 2, 0, 65)
    (query, key, value), gradient = inputs((1, 4, 2, sum(lengths), sum(key_lengths), 16), dtype)
    packed = [tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value)]
    offsets = [torch.tensor((0, *sizes)).cumsum(0).int() for sizes in (lengths, key_lengths)]
    output = attention_of_packed(*packed, *offsets, is_causal=True)
    parts = [tensor.split(sizes, 2) for tensor, sizes in ((query, lengths), (key, key_lengths), (value, key_lengths))]
    single = [torch.ops.orch.attention(*part, causal=True) for part in zip(*parts, strict=True)]
    tensors = [query, key, value]
    results = with_gradients(output.transpose(0, 1).unsqueeze(0), tensors, gradient)
    for result, expected in zip(results, with_gradients(torch.cat(single, 2), tensors, gradient), strict=True):
        assert torch.equal(result, expected)
    with pytest.raises(ValueError, match="offsets must increase from 0"):
        attention_of_packed(*packed, offsets[0] + 1, offsets[1])


def mask_of(p: float, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> Any:
    """Return the weights that dropout keeps: with equal scores and unit vectors as values the output shows them."""
    batch, heads, queries, keys = shape
    value = torch.eye(keys, dtype=dtype).expand(batch, heads, keys, keys).requires_grad_()
    zeros = torch.zeros(batch, heads, queries, keys, dtype=dtype)
    return torch.ops.orch.attention(zeros, torch.zeros_like(value), value, p=p) != 0


@pytest.mark.parametrize("p", [0.001, 0.5])
def test_share_of_dropped_weights_is_p_and_neighbours_are_independent(p: float) -> None:
    mask = mask_of(p, (2, 8, 256, 256))
    count = mask.numel()
    assert abs(float((~mask).sum()) - count * p) < 5 * (count * p * (1 - p)) ** 0.5 + count * 2**-17
    centred = mask.double() - mask.double().mean()
    neighbours = [(centred[..., n:], centred[..., :-n]) for n in (1, 2, 16, 64)]
    neighbours += [(centred[..., n:, :], centred[..., :-n, :]) for n in (1, 2, 16, 64)]
    neighbours += [(centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])]
    for a, b in neighbours:
        assert abs(float((a * b).mean())) / (p * (1 - p)) < 5 / a.numel() ** 0.5


@pytest.mark.parametrize("shape", [(2, 2, 70, 65), (1, 3, 600, 33), (1, 1, 70, 600)])
def test_gradients_use_the_mask_of_the_forward_pass(shape: Any) -> None:
    batch, heads, queries, keys = shape
    tensors, gradient = inputs((batch, heads, heads, queries, keys, keys), torch.float32)
    p = round(0.3 * 2**16) / 2**16
    torch.manual_seed(0)
    mask = mask_of(0.3, shape)
    torch.manual_seed(0)
    output = torch.ops.orch.attention(*tensors, p=0.3)
    query, key, value = (tensor.double() for tensor in tensors)
    weights = torch.softmax(query @ key.transpose(2, 3) * keys**-0.5, -1)
    expected = with_gradients(weights * mask / (1 - p) @ value, tensors, gradient)
    assert largest_error(with_gradients(output, tensors, gradient), expected) < 1e-4


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck(is_causal: bool) -> None:
    tensors, _ = inputs((1, 4, 2, 5, 7, 3), torch.float64)

    def replayed(*tensors: Any) -> Any:
        torch.manual_seed(11)
        return torch.ops.orch.attention(*tensors, p=0.4, causal=is_causal)

    assert torch.autograd.gradcheck(replayed, tensors)
    assert torch.autograd.gradgradcheck(replayed, tensors)
    keys = tensors[1].detach()
    assert torch.autograd.gradcheck(lambda query: replayed(query, keys, keys), tensors[0])


def test_gradient_of_a_mask_and_its_dropout() -> None:
    tensors, _ = inputs((2, 4, 2, 5, 7, 3), torch.float64)
    masks = [torch.randn(4, 5, 7, dtype=torch.float64) for _ in range(2)]
    masks[0][1, 2] = -torch.inf
    masks = [mask.requires_grad_() for mask in masks]

    def replayed(*tensors: Any) -> Any:
        torch.manual_seed(11)
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.4, enable_gqa=True)

    for mask in masks:
        assert largest_error([replayed(*tensors, mask)], [replayed(*tensors, mask.detach())]) < 1e-12
    assert torch.autograd.gradcheck(replayed, (*tensors, masks[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    tensors, gradient = inputs((2, 6, 3, 130, 200, 32), dtype)
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        results.append(with_gradients(torch.ops.orch.attention(*tensors, p=0.1), tensors, gradient))
    torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_seed_and_state_reproduce_the_draws() -> None:
    tensors, _ = inputs((2, 2, 2, 40, 40, 16), torch.float32)

    def call() -> Any:
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.5)

    torch.manual_seed(3)
    first, state, second = call(), torch.get_rng_state(), call()
    torch.set_rng_state(state)
    assert torch.equal(call(), second)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(call(), first)


def test_infinity_and_nan_are_not_hidden() -> None:
    (query, key, value), _ = inputs((1, 1, 1, 66, 33, 16), torch.float32)
    with torch.no_grad():
        query[0, 0, 3, 0], query[0, 0, 65, 1] = torch.nan, torch.inf
    assert torch.ops.orch.attention(query, key, value).isnan().all(-1)[0, 0].nonzero().flatten().tolist() == [3, 65]


def test_everything_else_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(module, "TORCHS", lambda *args, **kwargs: calls.append("torch"))
    (query, key, value), _ = inputs((2, 4, 2, 8, 8, 16), torch.bfloat16)
    with torch.no_grad():
        F.scaled_dot_product_attention(query, query, query)
    F.scaled_dot_product_attention(query, key, value)  # different heads without enable_gqa: torch's error
    F.scaled_dot_product_attention(query[0], query[0], query[0])
    F.scaled_dot_product_attention(query, query, query, dropout_p=1.0)
    F.scaled_dot_product_attention(query, query, query, torch.zeros(8, 7))
    F.scaled_dot_product_attention(query, query, query, torch.zeros(8, 8), is_causal=True)
    F.scaled_dot_product_attention(
        query.float(), query.float(), query.float()
    )  # torch's is faster if sequences are short
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(query, query, query)
    torch.func.vmap(lambda x: F.scaled_dot_product_attention(x, x, x) or x)(query[None])
    assert len(calls) == 9
    assert isinstance(F.scaled_dot_product_attention(query, key, value, enable_gqa=True), torch.Tensor)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.scaled_dot_product_attention(*[query.float()] * 3).dtype == torch.bfloat16
        assert F.scaled_dot_product_attention(query.float(), query.float(), query).dtype == torch.bfloat16
    (query, key, value), _ = inputs((1, 2, 2, 64, 64, 16), torch.float32)
    assert isinstance(F.scaled_dot_product_attention(query, key, value), torch.Tensor)
    meta = torch.ops.orch.attention(*(tensor.to("meta") for tensor in (query, key, value)))
    assert (meta.shape, meta.stride()) == (query.shape, torch.ops.orch.attention(query, key, value).stride())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_use_torchs() -> None:
    sequences = [torch.randn(rows, 2, 16) for rows in (5, 7)]
    nested = torch.nested.nested_tensor(sequences, layout=torch.jagged, requires_grad=True)
    output = F.scaled_dot_product_attention(*[nested.transpose(1, 2)] * 3).transpose(1, 2)
    for sequence, result in zip(sequences, output.unbind(), strict=True):
        rows = sequence.transpose(0, 1)[None]
        assert torch.allclose(result.transpose(0, 1), eager(rows, rows, rows)[0].float(), atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of Dynamo, which looks at the output
def test_compiled_autograd_has_the_same_gradients() -> None:
    (query, _, _), _ = inputs((1, 2, 2, 64, 64, 16), torch.float32)
    output = F.scaled_dot_product_attention(query, query, query)
    (expected,) = torch.autograd.grad(output.sum(), query)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: x.sum().backward(), backend="eager")(F.scaled_dot_product_attention(*[query] * 3))
    assert torch.allclose(query.grad, expected)


def test_invalid_inputs_are_errors() -> None:
    (query, key, value), _ = inputs((1, 3, 2, 8, 8, 16), torch.float32)
    with pytest.raises(ValueError, match="expected query"):
        torch.ops.orch.attention(query, key, value)
    with pytest.raises(ValueError, match="cannot be broadcast"):
        torch.ops.orch.attention(query, query, query, torch.zeros(3, 8))
    with pytest.raises(TypeError, match="one dtype"):
        torch.ops.orch.attention(query, query.double(), query)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_scripted_functions_use_torchs() -> None:
    layer = torch.nn.MultiheadAttention(16, 2, dropout=0.5)
    assert "scaled_dot_product_attention" in str(torch.jit.script(layer).inlined_graph)


BF16_WITH_AND_WITHOUT_ONEDNN = """
import orch_kernels, torch
assert orch_kernels.problem() is None
tensors = [torch.randn(1, 2, 40, 32) for _ in range(3)]
expected = torch.nn.functional.scaled_dot_product_attention(*tensors)
for enabled in (True, False):
    with torch.backends.mkldnn.flags(enabled=enabled):
        output = torch.ops.orch.attention(*[tensor.bfloat16().requires_grad_() for tensor in tensors])
        output.sum().backward()
    torch.testing.assert_close(output.float(), expected, atol=0.02, rtol=0.02)
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "ALL"])
def test_bf16_works_where_onednn_is_limited_or_disabled(isa: str) -> None:
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa}
    subprocess.run([sys.executable, "-c", BF16_WITH_AND_WITHOUT_ONEDNN], env=environment, check=True)
