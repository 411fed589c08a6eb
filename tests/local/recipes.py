"""Small trainings of the recipes: scripts, data and arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator import load
from tests.support.jobs import MINILM, RECIPES, flags, run_ranks

QA = RECIPES / "bert_qa" / "run_qa.py"
MRPC = RECIPES / "glue_mrpc" / "run_mrpc.py"
PRETRAIN = RECIPES / "bert_pretrain" / "run_pretraining.py"
PREPARE = RECIPES / "bert_data" / "prepare.py"
PRETRAINING_TEXT = PRETRAIN.parent / "data" / "text.txt"
QA_MODEL, PAIR_MODEL = "BertForQuestionAnswering", "BertForSequenceClassification"
DATA_FILES = {"train_file": "train", "validation_file": "eval"}
# Settings of bert-qa for a training through `orch train` that only trains.
QA_SETTINGS = {"logging_steps": 1, "max_train_samples": 48, "do_eval": False, "evaluate_before_training": False}


def qa_arguments(model: Path, output_dir: Path, **changes: Any) -> list[str]:
    train_file = QA.parent / "data" / "train.json"
    return flags(model_name_or_path=model, train_file=train_file, output_dir=output_dir, **changes)


def qa_defaults(output_dir: Path, **changes: Any) -> list[str]:
    """Return the arguments with which `orch train bert-qa --set NAME=VALUE...` starts the script."""
    files = {name: QA.parent / "data" / f"{part}.json" for name, part in DATA_FILES.items()}
    return flags(**{**load.recipe("bert-qa").settings(None, {}), **files, **changes}, output_dir=output_dir)


def mrpc_arguments(model: Path, output_dir: Path, **changes: Any) -> list[str]:
    values = {
        "model_name_or_path": model,
        "train_file": MRPC.parent / "data" / "train.tsv",
        "validation_file": MRPC.parent / "data" / "eval.tsv",
        "output_dir": output_dir,
        "max_seq_length": 48,
        "max_train_samples": 50,
        "max_eval_samples": 21,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "save_steps": 0,
    }
    return flags(**values | changes)


def pretrain_arguments(data: Path, output_dir: Path, **changes: Any) -> list[str]:
    """Return the arguments of 6 steps with sequences of 64 tokens and 4 with 128."""
    values = {
        "config_name": data.parent,
        "data_dir": data,
        "tokenizer_name": MINILM,
        "output_dir": output_dir,
        "max_seq_length": 64,
        "train_batch_size": 16,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "max_seq_length_phase2": 128,
        "train_batch_size_phase2": 8,
        "per_device_train_batch_size_phase2": 2,
        "max_steps_phase2": 4,
        "save_steps": 3,
        "logging_steps": 1,
    }
    return flags(**values | changes)


def prepare_pretraining_data(folder: Path) -> Path:
    """Prepare data for both phases of bert-pretrain, configure a small BERT next to it, and return its folder."""
    config = json.loads((PRETRAIN.parent / "configs" / "bert-tiny" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 32, "intermediate_size": 64}))
    values = {"input_file": PRETRAINING_TEXT, "tokenizer_name": MINILM, "output_dir": folder}
    run_ranks(PREPARE, *flags(**values, lengths="64:10,128:20", shards=3, dupe_factor=1))
    return folder / "data"
