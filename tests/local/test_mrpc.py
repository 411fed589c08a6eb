"""Train the recipe glue-mrpc with a tiny random BERT (32 wide, 2 layers), and once with its real model."""

from __future__ import annotations

import gc
import json
import re
import sys
from pathlib import Path

import pytest
from orch_training import RecipeError

from tests.local.recipes import MRPC, mrpc_arguments
from tests.local.runs import Orch, expect_exit, settings_options
from tests.support.jobs import read_losses, read_results, run_ranks

sys.path.insert(0, str(MRPC.parent))

from run_mrpc import read_tsv

gc.enable()  # the script is not run, which would enable it

HEADER = "label\tsentence1\tsentence2\n"
pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs


def test_resumed_training_ends_with_the_same_weights(pair_model: Path, tmp_path: Path) -> None:
    changes = {"save_steps": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    command = mrpc_arguments(pair_model, tmp_path, **changes)
    run_ranks(MRPC, *command, ranks=2)
    expected_losses, expected_results = read_losses(tmp_path), read_results(tmp_path)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    checkpoint = tmp_path / "checkpoint-8"  # in the second epoch
    (_, out, _), _ = run_ranks(MRPC, *command, "--resume_from_checkpoint", checkpoint, ranks=2)
    assert "training resumes from checkpoint-8." in out
    assert read_losses(tmp_path) == expected_losses
    assert read_results(tmp_path)["after"] == expected_results["after"]
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights


def test_invalid_data_file_is_reported_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tsv"
    for text, message in (
        ("sentence1\tsentence2\na\tb\n", "line 1: expected the columns label, sentence1, sentence2 once, "),
        (f"label\t{HEADER}", "line 1: expected the columns"),
        (f"{HEADER}1\tonly one\n", "line 2: expected 3 fields"),
        (f"{HEADER}yes\ta\tb\n", "line 2: the label is 'yes', not 0 or 1"),
        (f"{HEADER}1\ta\t\n", "line 2: a sentence is missing"),
    ):
        bad.write_text(text)
        with pytest.raises(RecipeError, match=re.escape(f"{bad}, {message}")):
            read_tsv(bad)


def test_sentence_may_contain_any_separator_except_tab_and_newline(tmp_path: Path) -> None:
    path = tmp_path / "lines.tsv"
    path.write_text(f'{HEADER}1\ta\x85b\tc\u2028d\x0ce\n\n0\t{"long " * 30_000}\t"b\n')
    assert read_tsv(path) == [(1, "a\x85b", "c\u2028d\x0ce"), (0, "long " * 30_000, '"b')]


def test_file_in_the_format_of_microsofts_corpus_is_read(tmp_path: Path) -> None:
    path = tmp_path / "msr.txt"
    path.write_text("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t17\t18\tone\ttwo\n")
    assert read_tsv(path) == [(1, "one", "two")]


def test_minilm_learns_to_recognize_paraphrases(orch: Orch) -> None:
    """Train without dropout for 3 epochs, which raise the accuracy from 49 % to 65 %."""
    settings = settings_options(save_steps=0, dropout=0, num_train_epochs=3)
    process = orch("train", "glue-mrpc", "--ppn", "1", "--precision", "fp32", *settings, "--json", timeout=900)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["after"]["accuracy"] > result["before"]["accuracy"] + 8
    assert result["after"]["f1"] > result["before"]["f1"]
