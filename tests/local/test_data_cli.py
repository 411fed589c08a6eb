"""`orch data prepare`: a plan like that of a training, and runs that carry each other on."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.runs import Orch, expect_exit

TEXT = "One day it rained. Nobody went out.\nThe cat slept.\n\nBread is baked. It smells good.\n"
SMALL = ("--set", "shards=2", "--set", "lengths=32:4")


def test_texts_become_data_that_a_training_takes(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(TEXT * 30)
    process = orch(
        "data", "prepare", "text", "one.txt", "--out", "data", *SMALL, "--ppn", "2", "--json", timeout=200, warm=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    result = json.loads(process.stdout)["result"]
    assert result["data_dir"] == str(tmp_path / "data")
    assert result["rows_seq32"] > 50
    assert len(list((tmp_path / "data" / "seq32").iterdir())) == 2
    again = orch(
        "train",
        "bert-pretrain",
        "--ppn",
        "2",
        "--precision",
        "fp32",
        "--set",
        f"data_dir={tmp_path / 'data'}",
        "--set",
        "phase=1",
        "--set",
        "max_seq_length=32",
        "--set",
        "max_steps=2",
        timeout=200,
    )
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_folder_of_texts(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in "ab":
        (tmp_path / "texts" / f"{name}.txt").write_text(TEXT)
    expect_exit(orch("data", "prepare", "text", "texts", "--out", "data", *SMALL, "--ppn", "1", timeout=200))
    settings = json.loads((tmp_path / "data" / "settings.json").read_text())
    assert [name for name, _ in settings["files"]] == ["a.txt", "b.txt"]


def test_a_dry_run_says_what_would_run(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(TEXT)
    process = expect_exit(orch("data", "prepare", "text", "one.txt", "--out", "data", "--dry-run"))
    assert "bert_data/prepare.py" in process.stdout
    assert f"--data_dir={tmp_path / 'data'}" in process.stdout
    assert not (tmp_path / "data").exists()


def test_a_missing_file_is_told(orch: Orch) -> None:
    process = orch("data", "prepare", "text", "nowhere.txt", "--out", "data", *SMALL, "--ppn", "1", timeout=200)
    assert process.returncode != 0
    assert "there is no file" in process.stdout + process.stderr
