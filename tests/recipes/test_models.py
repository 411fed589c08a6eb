"""Check that norms and rotary embeddings of transformers' models use the kernels, and compute what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
orch_kernels = pytest.importorskip("orch_kernels")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers.models.bert import modeling_bert  # noqa: E402
from transformers.models.gemma2 import modeling_gemma2  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

if problem := orch_kernels.problem():
    pytest.skip(f"norms and rotary embeddings are NOT tested: {problem}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("kernels")
SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
}
IDS = torch.arange(40).view(2, 20)
KERNELS = {"orch::rms_norm", "orch::rotate"}
ALL = {*KERNELS, "orch::residual_norm"}


def llama() -> Any:
    return modeling_llama.LlamaModel(transformers.LlamaConfig(**SIZES)).train()


def qwen3() -> Any:
    return modeling_qwen3.Qwen3Model(transformers.Qwen3Config(**SIZES)).train()


def gemma2() -> Any:
    return modeling_gemma2.Gemma2Model(transformers.Gemma2Config(**SIZES)).train()


def operators(call: Callable[[], Any]) -> set[str]:
    """Return which of the kernels a call uses."""
    with torch.profiler.profile() as profiler:
        call()
    return {event.key for event in profiler.key_averages()} & ALL


def gradients(output: Any, tensors: list[Any], order: int = 1) -> list[Any]:
    """Return the gradients of the sum of sines, also of the first gradients' if the order is 2."""
    first = torch.autograd.grad(output.sin().sum(), tensors, create_graph=order > 1)
    if order == 1:
        return [*first]
    return [*first, *torch.autograd.grad(sum(part.square().sum() for part in first), tensors)]


def assert_equals_torch(call: Callable[[], Any], tensors: list[Any], tolerance: float) -> None:
    """Check values, gradients and second derivatives against those of torch."""
    results = []
    for use in (orch_kernels.use, orch_kernels.restore):
        use()
        results.append([call(), *gradients(call(), tensors), *gradients(call(), tensors, order=2)])
    for result, expected in zip(*results, strict=True):
        assert result.dtype == expected.dtype
        assert (result.double() - expected.double()).norm() <= tolerance * expected.double().norm()


@pytest.mark.parametrize("shape", [(1, 8), (3, 5, 48), (2, 67, 515)])
def test_norm_equals_torchs_for_any_number_of_threads(shape: tuple[int, ...]) -> None:
    llama()
    norm, x = modeling_llama.LlamaRMSNorm(shape[-1], eps=0.01), torch.randn(shape, requires_grad=True)
    torch.nn.init.normal_(norm.weight)
    tensors = [x, norm.weight]
    assert_equals_torch(lambda: norm(x), tensors, 1e-6)
    assert_equals_torch(lambda: norm(x.transpose(0, -2)), tensors, 1e-6)
    orch_kernels.use()
    assert operators(lambda: norm(x)) == {"orch::rms_norm"}
    results, threads = [], torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append([norm(x), *gradients(norm(x), tensors)])
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batches", [1, 2])
def test_rotary_embedding_equals_torchs(dtype: Any, batches: int) -> None:
    llama()
    rotate = modeling_llama.apply_rotary_pos_emb
    queries = torch.randn(2, 9, 4, 34).to(dtype).requires_grad_()  # stored by rows, as in models
    keys = torch.randn(2, 2, 9, 34).to(dtype).requires_grad_()
    angles = torch.randn(2, batches, 9, 34)
    tensors = [queries, keys]

    def rotated() -> Any:
        return torch.cat([part.flatten() for part in rotate(queries.transpose(1, 2), keys, *angles)])

    assert_equals_torch(rotated, tensors, 1e-6 if dtype == torch.float32 else 0.01)
    orch_kernels.use()
    for result in rotate(queries.transpose(1, 2), keys, *angles):
        assert "Rotate" in result.grad_fn.name()
    strided = torch.randn(2, 4, 9, 68, requires_grad=True)[..., ::2]
    errors = rotate(strided, strided, *angles)[0] - rotate.__wrapped__(strided, strided, *angles)[0]
    assert float(errors.detach().abs().max()) < 1e-5


@pytest.mark.parametrize(("make", "used"), [(llama, KERNELS), (qwen3, KERNELS), (gemma2, {"orch::rotate"})])
def test_models_train_with_them_and_to_the_same_gradients(make: Callable[[], Any], used: set[str]) -> None:
    model, results = make(), []
    for use in (orch_kernels.use, orch_kernels.restore):
        use()
        state = model(IDS).last_hidden_state
        state.sin().sum().backward()
        results.append([state, *(weight.grad for weight in model.parameters())])
        model.zero_grad()
    for result, expected in zip(*results, strict=True):
        assert (result - expected).norm() <= 3e-5 * expected.norm() + 1e-6
    assert operators(lambda: model(IDS)) == set()
    orch_kernels.use()
    assert operators(lambda: model(IDS)) == used
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    state = model(IDS).last_hidden_state
    state.sin().sum().backward()
    for weight, expected in zip(model.parameters(), results[0][1:], strict=True):
        assert (weight.grad - expected).norm() <= 3e-5 * expected.norm() + 1e-6


def test_evaluation_and_compiled_models_and_other_types_use_torchs() -> None:
    model = llama()
    with torch.no_grad():
        assert operators(lambda: model(IDS)) == set()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(IDS)
    assert operators(lambda: compiled(IDS)) == set()
    assert operators(lambda: llama().bfloat16()(IDS)) == set()
    with torch.autocast("cpu", torch.bfloat16):
        assert operators(lambda: model(IDS)) == KERNELS


def test_checkpointed_layers_may_be_counted_in_the_forward_pass_alone() -> None:
    model, results = llama(), []
    for checkpoint in (False, True):
        if checkpoint:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        with FlopCounterMode(display=False):
            state = model(IDS).last_hidden_state
        state.sin().sum().backward()
        results.append([weight.grad.clone() for weight in model.parameters()])
        model.zero_grad()
    assert all(map(torch.equal, *results))


def test_batches_of_gradients_are_those_of_single_ones() -> None:
    model = llama()
    norm, x = model.norm, torch.randn(5, 64, requires_grad=True)
    batch = torch.randn(3, 5, 64)
    (gradient,) = torch.autograd.grad(norm(x), x, batch, is_grads_batched=True)
    assert torch.allclose(gradient[1], torch.autograd.grad(norm(x), x, batch[1])[0], atol=1e-6)
    heads, angles = torch.randn(1, 2, 5, 16, requires_grad=True), torch.randn(2, 1, 5, 16)
    batch = torch.randn(3, 1, 2, 5, 16)
    rotated = modeling_llama.apply_rotary_pos_emb(heads, heads, *angles)[0]
    (gradient,) = torch.autograd.grad(rotated, heads, batch, is_grads_batched=True, retain_graph=True)
    assert torch.allclose(gradient[1], torch.autograd.grad(rotated, heads, batch[1])[0], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.7])
def test_dropout_sum_and_norm_are_those_of_three_operators(p: float, dtype: Any) -> None:
    norm = torch.nn.LayerNorm(192, eps=0.01)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    x, residual = torch.randn(2, 41, 192).to(dtype).requires_grad_(), torch.randn(2, 41, 192, requires_grad=True)
    tensors = [x, residual, *norm.parameters()]

    def separate() -> Any:
        torch.manual_seed(7)
        return norm(torch.nn.functional.dropout(x, p).float() + residual)

    def kernel(x: Any = x, residual: Any = residual) -> Any:
        torch.manual_seed(7)
        return torch.ops.orch.residual_norm(x, residual, norm.weight, norm.bias, p, norm.eps)

    expected = [separate(), *gradients(separate(), tensors), *gradients(separate(), tensors, order=2)]
    results = [kernel(), *gradients(kernel(), tensors), *gradients(kernel(), tensors, order=2)]
    for result, target in zip(results, expected, strict=True):
        assert result.dtype == target.dtype
        assert (result.double() - target.double()).norm() <= (3e-6 if dtype == torch.float32 else 0.01) * target.norm()
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    assert all(map(torch.equal, results[:5], [kernel(), *gradients(kernel(), tensors)]))
    torch.set_num_threads(threads)
    transposed = kernel(x.transpose(0, 1), residual.transpose(0, 1))
    assert torch.equal(transposed, kernel(x.transpose(0, 1).contiguous(), residual.transpose(0, 1).contiguous()))


def bert() -> Any:
    sizes = {**SIZES, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.0}
    return modeling_bert.BertModel(transformers.BertConfig(**sizes)).train()


def test_layers_of_bert_end_with_the_kernel_unless_a_hook_watches_them() -> None:
    model, results = bert(), []
    for replaced in (True, False):
        if not replaced:
            for module in model.modules():
                if isinstance(module, torch.nn.LayerNorm):
                    module.register_forward_hook(lambda *_: None)
        assert operators(lambda: model(IDS)) == ({"orch::residual_norm"} if replaced else set())
        torch.manual_seed(5)
        state = model(IDS).last_hidden_state
        state.sin().sum().backward()
        results.append([state.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)])
        model.zero_grad()
    for result, expected in zip(*results, strict=True):
        assert (result - expected).norm() <= 3e-5 * expected.norm() + 1e-5
    model = bert()
    assert operators(lambda: model.eval()(IDS)) == set()
    with torch.autocast("cpu", torch.bfloat16):
        assert operators(lambda: model.train()(IDS)) == {"orch::residual_norm"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_of_gpt2_is_one_operator_in_training(dtype: Any) -> None:
    model = transformers.GPT2Model(transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=50))
    activation = model.h[0].mlp.act
    x = (torch.randn(7, 640) * 3).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    assert activation(x).grad_fn.name() == "GeluBackward0"
    expected = [activation(exact), *gradients(activation(exact), [exact], order=2)]
    results = [activation(x), *gradients(activation(x), [x], order=2)]
    for result, target in zip(results, expected, strict=True):
        assert result.dtype == dtype
        assert (result.double() - target).norm() <= (1e-6 if dtype == torch.float32 else 0.02) * target.norm()
    orch_kernels.restore()
    assert activation(x).grad_fn.name() == "MulBackward0"


def test_negative_views_have_the_values_that_torch_computes() -> None:
    model, angles = bert(), torch.randn(2, 1, 20, 16)
    llama()
    norm, end = modeling_llama.LlamaRMSNorm(64), model.encoder.layer[0].output
    end.dropout.p = 1e-9
    heads = torch.randn(1, 4, 20, 16, requires_grad=True)

    def compute(real: Any, view: Callable[[Any], Any]) -> list[Any]:
        real.requires_grad_()
        rotated = modeling_llama.apply_rotary_pos_emb(heads, heads, view(angles[0]), angles[1])[0]
        outputs = [norm(view(real)), end(torch.ones(2, 20, 64), view(real)), rotated]
        return [*outputs, *torch.autograd.grad([part.sin() for part in outputs], [real, heads], [*map(view, outputs)])]

    real = torch.randn(2, 20, 64)
    expected = compute(real, lambda tensor: tensor)
    for result, target in zip(compute(real, lambda tensor: torch._neg_view(-tensor)), expected, strict=True):
        assert (result - target).norm() <= 1e-5 * target.norm()


def test_other_norms_and_rotary_embeddings_remain() -> None:
    gemma2()
    assert not hasattr(modeling_gemma2.Gemma2RMSNorm.forward, "__wrapped__")
    for error, call in (
        ("rms_norm: expected", lambda: torch.ops.orch.rms_norm(torch.ones(2, 3), torch.ones(2), 0.1)),
        ("rotate: expected", lambda: torch.ops.orch.rotate(torch.ones(1, 1, 2, 3), torch.ones(1, 2, 3), torch.ones(3))),
    ):
        with pytest.raises(ValueError, match=error):
            call()
