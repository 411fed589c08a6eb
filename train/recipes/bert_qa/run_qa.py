"""Train and evaluate a BERT-type model on question answering, on one or more ranks.

The arguments are those of Hugging Face's run_qa.py. With orch, the ranks have joined before this
script starts; with torchrun or alone, the script joins them itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

from orch_training import speed_up_imports

speed_up_imports()

from config import COMPARED, Config, parse_arguments
from evaluation import Evaluator
from orch_node import preemption
from orch_training import checkpoint, kernels, ranks
from orch_training.batches import Micros
from orch_training.metrics import Course
from orch_training.models import load_model, load_tokenizer, sequence_length
from orch_training.provenance import FACT, provenance_of
from orch_training.resume import begin, prepare_output
from orch_training.script import run_script, train_and_evaluate
from qa_trainer import QaTrainer
from squad import ANSWER, Window, load_training, load_validation, make_windows
from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding, set_seed

# Tokens; oneDNN caches kernels per shape. A rank of MiniLM needs 2.0 GB, and 2.6 GB with 1, at equal speed.
LENGTH_MULTIPLE = 8


def run(config: Config) -> None:
    """Train and evaluate a model, then save it and the results."""
    # ranks
    _ = config.training.device  # accelerate joins the ranks here unless they have joined already
    output_dir = Path(config.training.output_dir)
    prepare_output(output_dir)

    # data, model
    windows, model, evaluator = load(config)

    # loop, save
    def evaluate(phase: str) -> tuple[dict[str, float], float]:
        result = evaluator.evaluate(model, phase)
        if ranks.is_main():
            texts = {question: prediction.text for question, prediction in result.predictions.items()}
            nbest = {question: prediction.nbest for question, prediction in result.predictions.items()}
            checkpoint.write_json(output_dir / "predictions.json", texts)
            checkpoint.write_json(output_dir / "nbest_predictions.json", nbest)
        return result.scores, result.questions_per_second

    train = partial(train_model, config, model, windows, evaluator)
    train_and_evaluate(config.training, model, evaluator.tokenizer, train, evaluate)


def load(config: Config, calibration: int = 0) -> tuple[Sequence[Window], Any, Evaluator]:
    """Return the windows to train on, the model and the evaluator.

    Args:
        config: the command line.
        calibration: without a training, the number of questions whose windows are returned.
    """
    data, training = config
    has_training_data = bool(data.train_file or data.dataset_name)
    with ranks.raise_together():
        train = load_training(data) if training.do_train or (calibration and has_training_data) else []
        validation = load_validation(data) if training.do_eval else []
        tokenizer = load_tokenizer(config.args)
        tokenizer.padding_side = "right"  # the positions of answers count from the left
        model = load_model(AutoModelForQuestionAnswering, config.args, training.seed)
        length = sequence_length(data.max_seq_length, tokenizer, model)
        questions = train if training.do_train else (train or validation)[:calibration]
        windows = make_windows(questions, tokenizer, max_length=length, stride=data.doc_stride)
    pad = DataCollatorWithPadding(
        tokenizer,
        padding="max_length" if data.pad_to_max_length else True,
        max_length=length if data.pad_to_max_length else None,
        pad_to_multiple_of=math.gcd(length, LENGTH_MULTIPLE),  # never more than the model's positions
    )
    collated = partial(collate, pad)
    evaluator = Evaluator(config=config, questions=validation, tokenizer=tokenizer, collate=collated, max_length=length)
    return windows, model, evaluator


def collate(pad: DataCollatorWithPadding, batch: Sequence[Window]) -> dict[str, Any]:
    """Return a batch of windows; workers of a DataLoader that are not forked need a function of a module."""
    return dict(pad([window.inputs for window in batch]))


def train_model(config: Config, model: Any, windows: Sequence[Window], evaluator: Evaluator) -> dict[str, Any]:
    """Train the model in place, from the newest checkpoint if any; return the speed, the steps and the last loss."""
    training = config.training
    rows = ([window.inputs[name] for name in ("input_ids", *ANSWER)] for window in windows)  # all else follows from it
    data = {"training data": rows, "evaluation data": evaluator.questions}
    settings = {name: getattr(training, name) for name in COMPARED}
    provenance = provenance_of(__file__, config.args, data, config.args, settings)
    start, dealing = begin(training, provenance, len(windows), "windows")
    training.gradient_accumulation_steps = dealing.micro_batches
    kernels.report_computation(bf16=training.bf16, optimizer=str(training.optim.value), kernels=kernels.settle(start))
    start_step = checkpoint.step_of(start) if start else 0
    course = Course(Path(training.output_dir), samples_per_step=dealing.batch.size, start_step=start_step)
    seed = training.seed if training.data_seed is None else training.data_seed
    lengths = [window.length for window in windows] if config.args.length_grouping else []
    trainer = QaTrainer(
        model=model,
        args=training,
        train_dataset=Micros(windows, evaluator.collate, dealing, seed, lengths),
        course=course,
        evaluator=evaluator if training.do_eval else None,
        facts={**dealing.batch.facts, FACT: provenance},
        qa_args=config.args,
    )
    # Trainer seeds all ranks equally: they would drop the same units for different examples.
    set_seed(training.seed + ranks.rank())
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    steps = trainer.state.global_step
    trainer.release()
    if preemption.AGREEMENT.agreed and steps < trainer.state.max_steps:
        preemption.end(steps)
    return course.summary(steps)


if __name__ == "__main__":
    sys.exit(run_script(lambda: run(parse_arguments(sys.argv[1:]))))
