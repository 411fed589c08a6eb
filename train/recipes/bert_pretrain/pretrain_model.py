"""BERT with its two pretraining heads, and the sums of its two losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from orch_training import kernels
from orch_training.errors import RecipeError
from orch_training.models import locate, set_dropout
from pretrain_config import PretrainArguments
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, BertConfig, BertForPreTraining, set_seed

CONFIGS = Path(__file__).resolve().parent / "configs"


def fresh_model(args: PretrainArguments, vocabulary: int) -> Any:
    """Return a model with random weights that depend on the seed.

    Args:
        args: the arguments of the run, with the name or folder of the model's configuration.
        vocabulary: the number of tokens that the tokenizer knows.

    Raises:
        RecipeError: if the configuration cannot be read, is not one of BERT, or has fewer tokens.
    """
    bundled_config = CONFIGS / args.config_name
    config_source = str(bundled_config) if bundled_config.is_dir() else locate(args.config_name)
    try:
        config = AutoConfig.from_pretrained(
            config_source,
            cache_dir=args.cache_dir,
            revision=args.model_revision,
            attn_implementation=kernels.attention(),
        )
    except (OSError, ValueError) as error:
        raise RecipeError(f"{args.config_name}: {' '.join(str(error).split())}") from error
    if not isinstance(config, BertConfig):
        raise RecipeError(f"{args.config_name} is not a BERT configuration, which this recipe requires.")
    if config.vocab_size < vocabulary:
        raise RecipeError(f"{args.config_name} knows {config.vocab_size} tokens, the tokenizer {vocabulary}.")
    set_dropout(config, args.dropout)
    set_seed(args.seed)
    return BertForPreTraining(config)


class Losses(torch.nn.Module):
    """The model with its two losses; each head computes only masked positions or [CLS]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Return the summed losses of the masked tokens and of next-sentence prediction."""
        hidden, pooled = self.model.bert(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
            return_dict=False,
        )[:2]
        masked_states = hidden.flatten(0, 1).index_select(0, batch["masked"])
        token_logits, next_logits = self.model.cls(masked_states, pooled)
        return (
            cross_entropy(token_logits.float(), batch["labels"], reduction="sum"),
            cross_entropy(next_logits.float(), batch["is_random_next"], reduction="sum"),
        )
