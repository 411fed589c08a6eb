"""Test the recipe bert-qa-quant with a tiny random BERT (32 wide, 1 layer)."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e
from transformers import AutoModelForQuestionAnswering

from tests.local.recipes import QA, QA_MODEL, qa_arguments
from tests.support.jobs import RECIPES, make_tiny_bert, read_results, run_ranks

SCRIPT = RECIPES / "bert_qa_quant" / "run_qa_quant.py"
sys.path[:0] = [str(SCRIPT.parent), str(QA.parent)]

from int8 import prepared  # noqa: E402

gc.enable()  # the script is not run, which would enable it

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torchao warns of kernels for other devices
    pytest.mark.xdist_group("recipes"),
]


def test_trained_model_is_quantized_statically_and_dynamically(tmp_path: Path) -> None:
    """Train on two ranks with the flags of optimum-intel's example; compile only the static model."""
    model = make_tiny_bert(tmp_path / "tiny", QA_MODEL, layers=1)
    values = {
        "validation_file": QA.parent / "data" / "eval.json",
        "max_steps": 2,
        "num_calibration_samples": 9,
        "max_train_samples": 30,
        "max_eval_samples": 12,
        "max_seq_length": 60,  # not a multiple to which batches are padded
        "doc_stride": 16,
        "save_strategy": "no",
        "pad_to_max_length": False,
        "quantization_approach": "static",
    }
    flags = ("--do_train", "--do_eval", "--apply_quantization", "--verify_loading")
    run_ranks(SCRIPT, *qa_arguments(model, tmp_path, **values), *flags, ranks=2)
    results = read_results(tmp_path)["precisions"]
    assert list(results) == ["fp32", "bf16", "int8"]
    for figures in results.values():
        assert set(figures) == {"em", "f1", "windows_per_second", "size_mb"}
        assert figures["windows_per_second"] > 0
    assert results["int8"]["f1"] == pytest.approx(results["fp32"]["f1"], abs=15)
    assert read_results(tmp_path)["loading"] == {"difference": 0.0, "tolerance": 1e-4}
    manifest = json.loads((tmp_path / "quantized" / "manifest.json").read_text())
    assert manifest["approach"] == "static"
    assert "model.pt2" in manifest["files"]

    trained = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model", attn_implementation="eager")
    graph = prepared(trained, manifest["inputs"], dynamic=True, longest=64)
    inputs = [torch.randint(1000, (2, 64)), torch.ones(2, 64, dtype=torch.long), torch.zeros(2, 64, dtype=torch.long)]
    assert manifest["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    with torch.no_grad():
        graph(*inputs)
        quantized, _ = convert_pt2e(graph)(*inputs)
        expected = trained(*inputs).start_logits
    assert 0 < float((quantized - expected).abs().max()) < 0.1 * float(expected.abs().max())


@pytest.mark.parametrize("family", ["Roberta", "DebertaV2"])
def test_sums_of_integers_are_not_calibrated(family: str) -> None:
    """Calibrate models that compute positions (RoBERTa) and distances of tokens (DeBERTa)."""
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    distances = {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"]}
    config = getattr(transformers, f"{family}Config")(**sizes, intermediate_size=8, **distances)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForQuestionAnswering")(config).eval()
    graph = prepared(model, ["input_ids", "attention_mask"], dynamic=False, longest=64)
    inputs = (torch.randint(3, 20, (2, 16)), torch.ones(2, 16, dtype=torch.long))
    with torch.no_grad():
        torch.testing.assert_close(graph(*inputs), model(*inputs).to_tuple())
