"""Each recipe's gradients are views of DDP's buckets: no copies there and back at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import MINILM, RECIPES, SCRIPTS, flags, run, tiny_bert

MRPC = RECIPES / "glue_mrpc" / "data"
QA = RECIPES / "bert_qa" / "data"
PRETRAIN = RECIPES / "bert_pretrain" / "data"
pytestmark = pytest.mark.xdist_group("recipes")  # they share a server of warm programs


def views(script: str, **values: object) -> list[str]:
    """What the DDPs of two ranks tell."""
    results = run(SCRIPTS / "telling_ddp.py", RECIPES / script, *flags(**values), ranks=2)
    lines = "".join(err for _, _, err in results).splitlines()
    return [line for line in lines if line.startswith("views of buckets: ")]


def test_bert_qa(tmp_path: Path) -> None:
    tiny = tiny_bert(tmp_path / "tiny", "BertForQuestionAnswering", layers=1)
    told = views(
        "bert_qa/run_qa.py",
        model_name_or_path=tiny,
        do_train=True,
        train_file=QA / "train.json",
        output_dir=tmp_path / "out",
        max_train_samples=8,
        max_steps=1,
        per_device_train_batch_size=1,
        save_strategy="no",
    )
    assert told == ["views of buckets: True"] * 2


def test_glue_mrpc(tmp_path: Path) -> None:
    tiny = tiny_bert(tmp_path / "tiny", "BertForSequenceClassification", layers=1)
    told = views(
        "glue_mrpc/run_mrpc.py",
        model_name_or_path=tiny,
        train_file=MRPC / "train.tsv",
        validation_file=MRPC / "eval.tsv",
        output_dir=tmp_path / "out",
        max_train_samples=8,
        max_eval_samples=4,
        max_seq_length=48,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        save_steps=0,
    )
    assert told == ["views of buckets: True"] * 2


def test_bert_pretrain(tmp_path: Path) -> None:
    run(
        RECIPES / "bert_data" / "prepare.py",
        *flags(
            input_file=PRETRAIN / "text.txt",
            tokenizer_name=MINILM,
            output_dir=tmp_path,
            lengths="64:10",
            shards=1,
            dupe_factor=1,
        ),
    )
    told = views(
        "bert_pretrain/run_pretraining.py",
        data_dir=tmp_path / "data",
        tokenizer_name=MINILM,
        output_dir=tmp_path / "out",
        phase=1,
        max_seq_length=64,
        train_batch_size=2,
        per_device_train_batch_size=1,
        max_steps=1,
    )
    assert told == ["views of buckets: True"] * 2
