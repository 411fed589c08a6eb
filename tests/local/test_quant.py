"""The recipe bert-qa-quant, with a tiny random BERT (32 wide, 1 layer)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.jobs import RECIPES, ended, flags, results_of, run, started, tiny_bert

SCRIPT = RECIPES / "bert_qa_quant" / "run_qa_quant.py"
DATA = RECIPES / "bert_qa" / "data"
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torchao's, of kernels for other devices
    pytest.mark.xdist_group("recipes"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("tiny"), "BertForQuestionAnswering", layers=1)


def arguments(model: Path, output_dir: Path, **more: object) -> list[str]:
    values: dict[str, object] = {
        "model_name_or_path": model,
        "train_file": DATA / "train.json",
        "validation_file": DATA / "eval.json",
        "output_dir": output_dir,
        "do_eval": True,
        "max_train_samples": 30,
        "max_eval_samples": 12,
        "max_seq_length": 64,
        "doc_stride": 16,
        "save_strategy": "no",
        "pad_to_max_length": False,
    }
    return flags(**(values | more))


@pytest.fixture(scope="module")
def static(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, the flags as optimum-intel's example has them."""
    out = tmp_path_factory.mktemp("static")
    run(
        SCRIPT,
        *arguments(tiny, out, max_steps=2),
        "--do_train",
        "--apply_quantization",
        "--quantization_approach",
        "static",
        "--num_calibration_samples",
        "9",
        "--verify_loading",
        ranks=2,
        warm=False,
    )
    return out


def test_three_precisions_side_by_side(static: Path) -> None:
    found = results_of(static)["precisions"]
    assert list(found) == ["fp32", "bf16", "int8"]
    for figures in found.values():
        assert set(figures) == {"em", "f1", "windows_per_second", "mb"}
        assert figures["windows_per_second"] > 0
    assert found["int8"]["f1"] == pytest.approx(found["fp32"]["f1"], abs=15)


def test_what_was_saved_loads_in_a_fresh_process(static: Path) -> None:
    assert results_of(static)["loading"] == {"difference": 0.0, "tolerance": 1e-4}
    manifest: dict[str, Any] = json.loads((static / "quantized" / "manifest.json").read_text())
    assert manifest["approach"] == "static"
    assert manifest["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert "model.pt2" in manifest["files"]


def test_dynamic_quantization_of_a_model_that_is_trained_already(static: Path, tmp_path: Path) -> None:
    run(SCRIPT, *arguments(static / "model", tmp_path, quantization_approach="dynamic", verify_loading=True))
    results = results_of(tmp_path)
    assert results["precisions"]["fp32"]["f1"] == results_of(static)["precisions"]["fp32"]["f1"]
    assert results["loading"]["difference"] <= 1e-4


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (["--quantization_approach", "aware_training"], "must be static or dynamic"),
        (["--num_calibration_samples", "0"], "--num_calibration_samples must be at least 1"),
        (["--num_calibration_sample", "5"], "unknown argument '--num_calibration_sample'"),
    ],
)
def test_wrong_flags_exit_with_2(tiny: Path, tmp_path: Path, flag: list[str], message: str) -> None:
    ((code, _, err),) = ended(started(SCRIPT, *arguments(tiny, tmp_path), *flag))
    assert code == 2
    assert message in err


def test_histograms_of_ranks_become_one() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    from int8 import merged

    parts = []
    samples = [torch.randn(5000, generator=torch.Generator().manual_seed(n)) * n for n in (1, 3)]
    for sample in samples:
        low, high = sample.min(), sample.max()
        counts = torch.histogram(sample, 2048, range=(float(low), float(high))).hist
        parts.append((counts, low, high))
    counts, low, high = merged(parts)
    every = torch.cat(samples)
    assert (low, high) == (float(every.min()), float(every.max()))
    assert float(counts.sum()) == 10_000
    expected = torch.histogram(every, 2048, range=(low, high)).hist.cumsum(0)
    assert float((counts.cumsum(0) - expected).abs().max()) < 60
