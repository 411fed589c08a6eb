"""Cut questions with their contexts into overlapping windows that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from orch_training import RecipeError
from squad import Question

Offset = tuple[int, int]
CHUNK = 1000  # questions per call of the tokenizer; limits memory and does not change the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An input of the model: [CLS] question [SEP] part of the context [SEP].

    Attributes:
        question: the index of the question.
        input_ids: the tokens.
        token_type_ids: the segment of each token, if the tokenizer returns segments.
        offsets: for each token of the context, its first character and one past its last, else
            None.
        start: the first token of the first answer; 0 ([CLS]) unless the window has all of it.
        end: the last token of the first answer; 0 ([CLS]) unless the window has all of it.
    """

    question: int
    input_ids: list[int]
    token_type_ids: list[int] | None
    offsets: list[Offset | None]
    start: int
    end: int


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
            start, end = answer_tokens(offsets, chunk[index])
            segments = encoded["token_type_ids"][row] if "token_type_ids" in encoded else None
            window = Window(
                question=first + index,
                input_ids=encoded["input_ids"][row],
                token_type_ids=segments,
                offsets=offsets,
                start=start,
                end=end,
            )
            windows.append(window)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Collator:
    """A function that makes a padded batch of tensors from windows.

    oneDNN builds and caches kernels per shape, so that fewer shapes need less memory.

    Attributes:
        pad_token_id: the token to pad with.
        pad_to: the length of all batches, or None for that of the longest window.
        multiple: the length is rounded up to a multiple of this number.
    """

    pad_token_id: int
    pad_to: int | None = None
    multiple: int = 1

    def __call__(self, windows: Sequence[Window]) -> dict[str, torch.Tensor]:
        longest = max(len(window.input_ids) for window in windows)
        length = self.pad_to or -(-longest // self.multiple) * self.multiple
        batch = {
            "input_ids": padded([w.input_ids for w in windows], length, self.pad_token_id),
            "attention_mask": padded([[1] * len(w.input_ids) for w in windows], length, 0),
            "start_positions": torch.tensor([window.start for window in windows]),
            "end_positions": torch.tensor([window.end for window in windows]),
        }
        segments = [window.token_type_ids for window in windows if window.token_type_ids is not None]
        if segments:
            batch["token_type_ids"] = padded(segments, length, 0)
        return batch


def padded(rows: Sequence[list[int]], length: int, value: int) -> torch.Tensor:
    """Return rows as a tensor, each padded to the length with the value."""
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])
