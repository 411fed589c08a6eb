"""End a run at once, with a hint, when the hub cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from huggingface_hub import constants
from orch_training import RecipeError, models
from orch_training.arguments import ModelArguments
from orch_training.models import load_tokenizer


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the hub have a name that does not exist (RFC 2606)."""
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    models.is_reachable.cache_clear()
    yield
    models.is_reachable.cache_clear()


HINT = "name a folder that all nodes have"


def test_model_of_an_unreachable_hub_is_searched_only_in_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = ModelArguments(model_name_or_path="team/no-such-model", cache_dir=str(tmp_path))
    with pytest.raises(RecipeError, match=HINT):
        load_tokenizer(arguments)
    assert "Retrying" not in caplog.text


def test_data_of_an_unreachable_hub_are_searched_only_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = pytest.importorskip("datasets").config
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setattr(config, name, False, raising=False)
    with pytest.raises(RecipeError, match=HINT):
        models.hub_rows("team/no-such-data", None, "train")
    assert "Retrying" not in caplog.text


def test_hub_behind_a_proxy_counts_as_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert models.is_reachable()
