"""Cuts questions with their contexts into overlapping windows that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from orch_training.errors import RecipeError
from squad import Question

Offset = tuple[int, int]
CHUNK = 1000  # questions given to the tokenizer at once; bounds memory, not the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One input of the model: [CLS] question [SEP] part of the context [SEP].

    `question` indexes the list of questions. `offsets` has, for a token of the context, the
    characters (first, one past last) it covers there, else None. `start` and `end` are the tokens
    of the first answer, both 0 ([CLS]) if the window does not hold the whole of it.
    """

    question: int
    input_ids: list[int]
    token_type_ids: list[int] | None
    offsets: list[Offset | None]
    start: int
    end: int


def make_windows(questions: Sequence[Question], tokenizer: Any, *, max_length: int, stride: int) -> list[Window]:
    """`stride`: how many tokens of context two neighbouring windows share."""
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
            windows.append(make_window(encoded, row, chunk[index], first + index))
    return windows


def check_room(questions: Sequence[Question], tokenizer: Any, *, max_length: int, stride: int) -> None:
    """The tokenizer cannot cut a context if question and stride leave no room for it."""
    room = max_length - stride - tokenizer.num_special_tokens_to_add(pair=True)
    texts = [question.question.strip() for question in questions]
    for question, ids in zip(questions, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        if len(ids) >= room:
            raise RecipeError(
                f"question {question.id!r} has {len(ids)} tokens; --max_seq_length {max_length} "
                f"with --doc_stride {stride} has room for {max(room - 1, 0)}."
            )


def make_window(encoded: Any, row: int, question: Question, index: int) -> Window:
    parts = encoded.sequence_ids(row)
    offsets = [
        tuple(offset) if part == 1 else None for offset, part in zip(encoded["offset_mapping"][row], parts, strict=True)
    ]
    start, end = answer_tokens(offsets, question)
    kinds = encoded["token_type_ids"][row] if "token_type_ids" in encoded else None
    return Window(
        question=index, input_ids=encoded["input_ids"][row], token_type_ids=kinds, offsets=offsets, start=start, end=end
    )


def answer_tokens(offsets: Sequence[Offset | None], question: Question) -> tuple[int, int]:
    """First and last token of the first answer; (0, 0) if it is not wholly inside."""
    if not question.answers:
        return 0, 0
    first = question.answers[0].start
    last = first + len(question.answers[0].text)
    start = max((i for i, o in enumerate(offsets) if o and o[0] <= first < o[1]), default=None)
    end = min((i for i, o in enumerate(offsets) if o and o[0] < last <= o[1]), default=None)
    return (0, 0) if start is None or end is None else (start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collator:
    """Windows -> a batch of tensors, padded to `pad_to`, or to its longest window.

    The length is a multiple of `multiple`: oneDNN builds and keeps kernels per shape, so that few
    shapes save memory.
    """

    pad_token_id: int
    pad_to: int | None = None
    multiple: int = 1

    def __call__(self, windows: Sequence[Window]) -> dict[str, torch.Tensor]:
        length = self.pad_to or self.rounded(max(len(window.input_ids) for window in windows))
        batch = {
            "input_ids": padded([w.input_ids for w in windows], length, self.pad_token_id),
            "attention_mask": padded([[1] * len(w.input_ids) for w in windows], length, 0),
            "start_positions": torch.tensor([window.start for window in windows]),
            "end_positions": torch.tensor([window.end for window in windows]),
        }
        kinds = [window.token_type_ids for window in windows if window.token_type_ids is not None]
        if kinds:
            batch["token_type_ids"] = padded(kinds, length, 0)
        return batch

    def rounded(self, length: int) -> int:
        return -(-length // self.multiple) * self.multiple


def padded(rows: Sequence[list[int]], length: int, value: int) -> torch.Tensor:
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])
