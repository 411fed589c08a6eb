"""Check that the gradients of each recipe are views of DDP's buckets, which saves copies in each step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.recipes import MRPC, PRETRAIN, QA, mrpc_arguments, pretrain_arguments, qa_arguments
from tests.support.jobs import SCRIPTS, run_ranks

pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs


def check_gradients_are_views(script: Path, arguments: list[str]) -> None:
    """Train on two ranks whose DDP reports whether gradients are views of its buckets."""
    results = run_ranks(SCRIPTS / "reporting_ddp.py", script, *arguments, ranks=2)
    lines = "".join(err for _, _, err in results).splitlines()
    assert [line for line in lines if line.startswith("views of buckets: ")] == ["views of buckets: True"] * 2


def test_gradients_of_bert_qa_are_views_of_buckets(qa_model: Path, tmp_path: Path) -> None:
    changes = {"max_train_samples": 8, "max_steps": 1, "per_device_train_batch_size": 1, "save_strategy": "no"}
    check_gradients_are_views(QA, qa_arguments(qa_model, tmp_path, do_train=True, **changes))


def test_gradients_of_glue_mrpc_are_views_of_buckets(pair_model: Path, tmp_path: Path) -> None:
    changes = {"max_train_samples": 8, "max_eval_samples": 4, "num_train_epochs": 1}
    check_gradients_are_views(MRPC, mrpc_arguments(pair_model, tmp_path, **changes))


def test_gradients_of_bert_pretrain_are_views_of_buckets(pretraining_data: Path, tmp_path: Path) -> None:
    changes = {"phase": 1, "train_batch_size": 2, "per_device_train_batch_size": 1, "max_steps": 1}
    check_gradients_are_views(PRETRAIN, pretrain_arguments(pretraining_data, tmp_path, **changes))
