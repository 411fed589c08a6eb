"""Cut questions with their contexts into overlapping windows that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from orch_training import RecipeError
from squad import Question
from transformers import DataCollatorWithPadding

Offset = tuple[int, int]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # not all tokenizers return the last
ANSWER = ("start_positions", "end_positions")
CHUNK = 1000  # questions per call of the tokenizer; limits memory and does not change the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An input of the model: [CLS] question [SEP] part of the context [SEP].

    Attributes:
        question: the index of the question.
        inputs: what the model gets: INPUTS, and the first and last token of the first answer; both are 0 ([CLS])
            unless the window has all of it.
        offsets: for each token of the context, its first character and one past its last, else
            None.
    """

    question: int
    inputs: dict[str, Any]
    offsets: list[Offset | None]

    @property
    def length(self) -> int:
        return len(self.offsets)


def make_windows(questions: Sequence[Question], tokenizer: Any, *, max_length: int, stride: int) -> list[Window]:
    """Cut questions into windows.

    Args:
        questions: the questions with their contexts.
        tokenizer: the tokenizer of the model.
        max_length: the tokens of a window.
        stride: the tokens of context that two neighbouring windows share.

    Raises:
        RecipeError: if a question leaves no room for context.
    """
    windows: list[Window] = []
    for first in range(0, len(questions), CHUNK):
        chunk = questions[first : first + CHUNK]
        check_room(chunk, tokenizer, max_length=max_length, stride=stride)
        encoded = tokenizer(
            [question.question.strip() for question in chunk],
            [question.context for question in chunk],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for row, index in enumerate(encoded["overflow_to_sample_mapping"]):
            parts = zip(encoded["offset_mapping"][row], encoded.sequence_ids(row), strict=True)
            offsets = [tuple(offset) if part == 1 else None for offset, part in parts]
            answer = dict(zip(ANSWER, answer_tokens(offsets, chunk[index]), strict=True))
            inputs = {name: encoded[name][row] for name in INPUTS if name in encoded}
            windows.append(Window(question=first + index, inputs={**inputs, **answer}, offsets=offsets))
    return windows


def check_room(questions: Sequence[Question], tokenizer: Any, *, max_length: int, stride: int) -> None:
    """Check that each question leaves room for more context than the stride.

    Raises:
        RecipeError: if a question is too long for the tokenizer to cut its context.
    """
    room = max_length - stride - tokenizer.num_special_tokens_to_add(pair=True)
    texts = [question.question.strip() for question in questions]
    for question, ids in zip(questions, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        if len(ids) >= room:
            raise RecipeError(
                f"question {question.id!r} has {len(ids)} tokens; --max_seq_length {max_length} "
                f"with --doc_stride {stride} has room for {max(room - 1, 0)}."
            )


def answer_tokens(offsets: Sequence[Offset | None], question: Question) -> tuple[int, int]:
    """Return the first and last token of the first answer, or (0, 0) unless all of it is inside."""
    if not question.answers:
        return 0, 0
    first = question.answers[0].start
    last = first + len(question.answers[0].text)
    start = max((i for i, o in enumerate(offsets) if o and o[0] <= first < o[1]), default=None)
    end = min((i for i, o in enumerate(offsets) if o and o[0] < last <= o[1]), default=None)
    return (0, 0) if start is None or end is None else (start, end)


def collate(pad: DataCollatorWithPadding, windows: Sequence[Window]) -> dict[str, torch.Tensor]:
    """Return a padded batch of tensors."""
    return dict(pad([window.inputs for window in windows]))
