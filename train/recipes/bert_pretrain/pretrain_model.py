"""BERT with its two heads, and the sums of its two losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from orch_training.errors import RecipeError
from orch_training.models import locate, set_dropout
from pretrain_config import PretrainArguments
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, BertConfig, BertForPreTraining, set_seed

CONFIGS = Path(__file__).resolve().parent / "configs"


def fresh_model(args: PretrainArguments, vocabulary: int) -> Any:
    """With random weights that the seed decides on. `vocabulary`: tokens."""
    own = CONFIGS / args.config_name
    place = str(own) if own.is_dir() else locate(args.config_name)
    try:
        config = AutoConfig.from_pretrained(
            place, cache_dir=args.cache_dir, revision=args.model_revision, attn_implementation=args.attn_implementation
        )
    except (OSError, ValueError) as error:
        raise RecipeError(f"{args.config_name}: {' '.join(str(error).split())}") from error
    if not isinstance(config, BertConfig):
        raise RecipeError(f"{args.config_name} is no BERT, which this recipe pretrains.")
    if config.vocab_size < vocabulary:
        raise RecipeError(f"{args.config_name} knows {config.vocab_size} tokens, the tokenizer {vocabulary}.")
    set_dropout(config, args.dropout)
    set_seed(args.seed)
    return BertForPreTraining(config)


class Losses(torch.nn.Module):
    """Both heads see only what they are asked for: the masked places, and [CLS]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """-> summed loss of the masked tokens, summed loss of the next-sentence question."""
        hidden, pooled = self.model.bert(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
            return_dict=False,
        )[:2]
        chosen = hidden.flatten(0, 1).index_select(0, batch["masked"])
        words, next_ = self.model.cls(chosen, pooled)
        return (
            cross_entropy(words.float(), batch["labels"], reduction="sum"),
            cross_entropy(next_.float(), batch["is_random_next"], reduction="sum"),
        )
