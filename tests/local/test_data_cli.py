"""Prepare data with `orch data prepare`, and train on them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.runs import Orch, expect_exit, settings_options

TEXT = "One day it rained. Nobody went out.\nThe cat slept.\n\nBread is baked. It smells good.\n"
PREPARE = ("data", "prepare", "text")
OPTIONS = ("--out", "data", "--set", "shards=2", "--set", "lengths=32:4")


def test_all_texts_of_a_folder_become_data_for_a_training(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in "ab":
        (tmp_path / "texts" / f"{name}.txt").write_text(TEXT * 15)
    process = orch(*PREPARE, "texts", *OPTIONS, "--ppn", "2", "--json", timeout=200, warm=False)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["data_dir"] == str(tmp_path / "data")
    assert result["rows_seq32"] > 50
    assert len(list((tmp_path / "data" / "seq32").iterdir())) == 2
    prepared = json.loads((tmp_path / "data" / "settings.json").read_text())
    assert [name for name, _ in prepared["files"]] == ["a.txt", "b.txt"]
    settings = settings_options(data_dir=tmp_path / "data", phase=1, max_seq_length=32, max_steps=2)
    expect_exit(orch("train", "bert-pretrain", "--ppn", "1", "--precision", "fp32", *settings, timeout=200))
