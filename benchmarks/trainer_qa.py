"""Train question answering with transformers' Trainer and the settings and defaults of its run_qa.py.

training.py compares bert-qa with it. It does not use orch and prints no scores.

    torchrun --nproc-per-node 2 trainer_qa.py MODEL TRAIN_FILE OUTPUT --steps 40 [--pad] [--bf16]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

LENGTH, STRIDE = 384, 128


def main() -> None:
    options = parse_options()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    windows = windows_of(options.train_file, tokenizer, pad=options.pad)
    clock = Clock()
    trainer = Trainer(
        model=AutoModelForQuestionAnswering.from_pretrained(options.model),
        args=settings(options.output, options.steps, options.batch, bf16=options.bf16),
        train_dataset=windows,
        data_collator=default_data_collator if options.pad else DataCollatorWithPadding(tokenizer),
        callbacks=[clock],
    )
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model(str(options.output / "model"))
        tokenizer.save_pretrained(options.output / "model")
        samples = options.steps * options.batch * trainer.args.world_size
        speed = {"train_samples_per_second": samples / clock.seconds}
        (options.output / "results.json").write_text(json.dumps(speed))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("train_file", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--pad", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args()


def settings(output: Path, steps: int, batch: int, *, bf16: bool) -> TrainingArguments:
    """Return the settings of a user of run_qa.py; all others have their defaults."""
    return TrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        bf16=bf16,
        max_steps=steps,
        seed=0,
        per_device_train_batch_size=batch,
        learning_rate=2e-4,
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
    )


class Clock(TrainerCallback):
    """A clock from the beginning of the first step to the end of the last one, as in bert-qa."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = time.perf_counter() - self.began


def windows_of(file: Path, tokenizer: Any, *, pad: bool) -> list[dict[str, Any]]:
    """Return the windows of a nested SQuAD file, like prepare_train_features of run_qa.py."""
    rows = [
        (row["question"].lstrip(), paragraph["context"], row["answers"][0])
        for article in json.loads(file.read_text())["data"]
        for paragraph in article["paragraphs"]
        for row in paragraph["qas"]
    ]
    questions, contexts, answer_rows = zip(*rows, strict=True)
    cut = tokenizer(
        list(questions),
        list(contexts),
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if pad else False,
    )
    names = [name for name in tokenizer.model_input_names if name in cut]
    windows = []
    for index, row in enumerate(cut["overflow_to_sample_mapping"]):
        start, end = span(cut["offset_mapping"][index], cut.sequence_ids(index), answer_rows[row])
        inputs = {name: cut[name][index] for name in names}
        windows.append({**inputs, "start_positions": start, "end_positions": end})
    return windows


def span(offsets: list[Any], parts: list[int | None], answer_row: dict[str, Any]) -> tuple[int, int]:
    """Return the first and last token of the answer, or (0, 0) for [CLS] if the window lacks a part of it."""
    first = answer_row["answer_start"]
    last = first + len(answer_row["text"])
    context = [index for index, part in enumerate(parts) if part == 1]
    if not offsets[context[0]][0] <= first or not offsets[context[-1]][1] >= last:
        return 0, 0
    start = max(index for index in context if offsets[index][0] <= first)
    end = min(index for index in context if offsets[index][1] >= last)
    return start, end


if __name__ == "__main__":
    main()
