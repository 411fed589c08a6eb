"""Check that the eager attention of transformers' models uses the kernel, and only where nothing needs its weights."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
orch_kernels = pytest.importorskip("orch_kernels")

from orch_kernels import eager  # noqa: E402
from transformers.models.bert import modeling_bert  # noqa: E402
from transformers.models.gemma2 import modeling_gemma2  # noqa: E402
from transformers.models.gpt_oss import modeling_gpt_oss  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402
from transformers.models.t5 import modeling_t5  # noqa: E402

if problem := orch_kernels.problem():
    pytest.skip(f"eager attention is NOT tested: {problem}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("kernels")
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "attn_implementation": "eager",
}
IDS = torch.arange(20).view(2, 10)
MASK = torch.ones(2, 10, dtype=torch.long).index_fill_(1, torch.tensor([8, 9]), 0)


def bert(dropout: float) -> Any:
    probabilities = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": dropout}
    return modeling_bert.BertModel(transformers.BertConfig(**SIZES, **probabilities)).train()


def llama(dropout: float) -> Any:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, attention_dropout=dropout)
    return modeling_llama.LlamaModel(config).train()


def operators(model: Any, **options: Any) -> set[str]:
    """Return what the attention of a step is computed with."""
    with torch.profiler.profile() as profiler:
        model(IDS, attention_mask=MASK, **options).last_hidden_state.sum().backward()
    return {event.key for event in profiler.key_averages()} & {"orch::attention", "aten::softmax"}


@pytest.mark.parametrize(("make", "bf16"), [(bert, False), (llama, True)])
def test_training_uses_the_kernel(make: Any, bf16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        assert operators(make(0.5)) == {"orch::attention"}
        assert operators(make(0.0)) == ({"orch::attention"} if bf16 else {"aten::softmax"})
        assert operators(make(0.0).eval()) == ({"orch::attention"} if bf16 else {"aten::softmax"})
        with torch.no_grad():
            state = make(0.5).eval()(IDS)
    assert state.last_hidden_state.grad_fn is None


@pytest.mark.parametrize("make", [bert, llama])
def test_results_and_gradients_are_those_of_eager_attention(make: Any) -> None:
    model, results = make(0.5), []
    model.eval()  # without dropout, which draws other units
    for layer in model.modules():
        layer.attention_dropout = 0.0
    for use in (orch_kernels.use, orch_kernels.restore):
        use()
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(IDS, attention_mask=MASK).last_hidden_state
        output.square().sum().backward()
        results.append([output, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    for result, expected in zip(*results, strict=True):
        assert (result - expected).norm() < 0.03 * expected.norm() + 1e-3


def test_weights_that_somebody_reads_are_computed() -> None:
    model = bert(0.5)
    assert len(model(IDS, output_attentions=True).attentions) == 2
    assert operators(model) == {"aten::softmax"}, "transformers leaves its hooks"
    model = bert(0.5)
    weights: list[Any] = []
    attention = model.encoder.layer[0].attention.self

    def read_weights(module: Any, args: Any, output: Any) -> None:
        if module is attention:
            weights.append(output[1])

    with attention.register_forward_hook(read_weights):
        assert operators(model) == {"orch::attention", "aten::softmax"}
    with torch.nn.modules.module.register_module_forward_hook(read_weights):
        assert operators(model) == {"aten::softmax"}
    assert [layer.shape for layer in weights] == [(2, 4, 10, 10)] * 2


def test_models_with_another_attention_keep_it() -> None:
    functions = (modeling_gemma2, modeling_gpt_oss, modeling_t5)
    assert [eager.is_standard(module.eager_attention_forward) for module in functions] == [False] * 3
    assert eager.is_standard(modeling_bert.eager_attention_forward)
    assert eager.is_standard(modeling_llama.eager_attention_forward)
    assert not eager.discards_weights(type("Attention", (torch.nn.Module,), {"__module__": "not in sys.modules"}))
    orch_kernels.restore()
    assert operators(bert(0.5)) == {"aten::softmax"}


def test_compiled_model_keeps_eager_attention() -> None:
    model = bert(0.5)
    assert torch.compile(model, backend="eager")(IDS, attention_mask=MASK).last_hidden_state.shape == (2, 10, 32)
