"""Test the recipe bert-qa-quant with a tiny random BERT (32 wide, 1 layer)."""

from __future__ import annotations

import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from orch_training import ArgumentError

from tests.local.recipes import QA, QA_MODEL, qa_arguments
from tests.support.jobs import RECIPES, make_tiny_bert, read_results, run_ranks

SCRIPT = RECIPES / "bert_qa_quant" / "run_qa_quant.py"
sys.path[:0] = [str(SCRIPT.parent), str(QA.parent)]

from int8 import merged  # noqa: E402
from run_qa_quant import parse_quant_arguments  # noqa: E402

gc.enable()  # the script is not run, which would enable it

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torchao warns of kernels for other devices
    pytest.mark.xdist_group("recipes"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_bert(tmp_path_factory.mktemp("tiny"), QA_MODEL, layers=1)


def make_arguments(model: Path, output_dir: Path, **changes: Any) -> list[str]:
    values = {
        "validation_file": QA.parent / "data" / "eval.json",
        "do_eval": True,
        "max_train_samples": 30,
        "max_eval_samples": 12,
        "max_seq_length": 64,
        "doc_stride": 16,
        "save_strategy": "no",
        "pad_to_max_length": False,
    }
    return qa_arguments(model, output_dir, **values | changes)


@pytest.fixture(scope="module")
def static_output(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two ranks with the flags of optimum-intel's example, and return the output folder."""
    out = tmp_path_factory.mktemp("static")
    flags = (
        "--do_train --apply_quantization --quantization_approach static --num_calibration_samples 9 --verify_loading"
    )
    arguments = make_arguments(model, out, max_steps=2, num_calibration_samples=9)
    run_ranks(SCRIPT, *arguments, *flags.split(), ranks=2)
    return out


def test_three_precisions_are_compared(static_output: Path) -> None:
    results = read_results(static_output)["precisions"]
    assert list(results) == ["fp32", "bf16", "int8"]
    for figures in results.values():
        assert set(figures) == {"em", "f1", "windows_per_second", "mb"}
        assert figures["windows_per_second"] > 0
    assert results["int8"]["f1"] == pytest.approx(results["fp32"]["f1"], abs=15)


def test_saved_model_loads_in_a_new_process(static_output: Path) -> None:
    assert read_results(static_output)["loading"] == {"difference": 0.0, "tolerance": 1e-4}
    manifest = json.loads((static_output / "quantized" / "manifest.json").read_text())
    assert manifest["approach"] == "static"
    assert manifest["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert "model.pt2" in manifest["files"]


def test_trained_model_is_quantized_dynamically(static_output: Path, tmp_path: Path) -> None:
    model = static_output / "model"
    run_ranks(SCRIPT, *make_arguments(model, tmp_path, quantization_approach="dynamic"))
    results = read_results(tmp_path)["precisions"]
    assert results["fp32"]["f1"] == read_results(static_output)["precisions"]["fp32"]["f1"]
    assert results["int8"]["f1"] == pytest.approx(results["fp32"]["f1"], abs=15)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--quantization_approach", "aware_training", "must be static or dynamic"),
        ("--num_calibration_samples", "0", "--num_calibration_samples must be at least 1"),
        ("--num_calibration_smaples", "5", "unknown argument '--num_calibration_smaples'"),
    ],
    ids=["approach", "no-samples", "misspelled"],
)
def test_invalid_argument_is_reported(tmp_path: Path, flag: str, value: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        parse_quant_arguments([*make_arguments(tmp_path, tmp_path), flag, value])


def test_histograms_of_all_ranks_are_merged() -> None:
    parts = []
    samples = [torch.randn(5000, generator=torch.Generator().manual_seed(n)) * n for n in (1, 3)]
    for sample in samples:
        low, high = sample.min(), sample.max()
        counts = torch.histogram(sample, 2048, range=(float(low), float(high))).hist
        parts.append((counts, low, high))
    counts, low, high = merged(parts)
    all_samples = torch.cat(samples)
    assert (low, high) == (float(all_samples.min()), float(all_samples.max()))
    assert float(counts.sum()) == 10_000
    expected = torch.histogram(all_samples, 2048, range=(low, high)).hist.cumsum(0)
    assert float((counts.cumsum(0) - expected).abs().max()) < 60
