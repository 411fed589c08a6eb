"""BERT with its two pretraining heads, the sums of its two losses, and LAMB.

LAMB has layer-wise adaptive moments for large batches (You et al. 2019, arXiv:1904.00962). It follows NVIDIA's
FusedLAMB, apart from the clipping of gradients: moments are corrected for their bias towards zero, and the trust ratio
applies to parameters with weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from orch_training import RecipeError, describe
from orch_training.models import load_config
from pretrain_config import PretrainArguments, PretrainPhase
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from transformers import BertConfig, BertForPreTraining, set_seed

CONFIGS = Path(__file__).resolve().parent / "configs"
NO_DECAY = ("bias", "LayerNorm.weight")


def fresh_model(args: PretrainArguments, vocabulary: int, phases: Sequence[PretrainPhase]) -> Any:
    """Return a model with random weights that depend on the seed.

    Args:
        args: the arguments of the run, with the name or folder of the model's configuration.
        vocabulary: the number of tokens that the tokenizer knows.
        phases: the phases to train.

    Raises:
        RecipeError: if the configuration cannot be read, is not one of BERT, or has too few tokens or positions.
    """
    bundled_config = CONFIGS / args.config_name
    config = load_config(args, str(bundled_config) if bundled_config.is_dir() else args.config_name)
    if not isinstance(config, BertConfig):
        raise RecipeError(f"{args.config_name} is not a BERT configuration, which this recipe requires.")
    if config.vocab_size < vocabulary:
        raise RecipeError(f"{args.config_name} knows {config.vocab_size} tokens, the tokenizer {vocabulary}.")
    longest = max(phases, key=lambda phase: phase.length)
    if config.max_position_embeddings < longest.length:
        raise RecipeError(describe("too-few-positions", name=args.config_name, config=config, phase=longest))
    set_seed(args.seed)
    return BertForPreTraining(config)


class Losses(torch.nn.Module):
    """The model with its two losses; each head computes only masked positions or [CLS]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        """Return the summed losses of the masked tokens and of next-sentence prediction."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        hidden, pooled = self.model.bert(**inputs, return_dict=False)[:2]
        token_logits, next_logits = self.model.cls(hidden.flatten(0, 1).index_select(0, batch["masked"]), pooled)
        return (
            cross_entropy(token_logits.float(), batch["labels"], reduction="sum"),
            cross_entropy(next_logits.float(), batch["is_random_next"], reduction="sum"),
        )


class Lamb(Optimizer):
    """The LAMB optimizer."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter: Any, group: dict[str, Any]) -> None:
        """Update a parameter and its moments."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["mean"].lerp_(parameter.grad, 1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        update = (mean / (1 - beta1 ** state["step"])).div_(root)
        ratio = 1.0
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
            norms = float(parameter.norm()), float(update.norm())
            ratio = norms[0] / norms[1] if all(norms) else 1.0  # the trust ratio
        parameter.add_(update, alpha=-group["lr"] * ratio)


def groups_of(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Divide the parameters into those with weight decay, and biases and LayerNorm weights without."""
    parameters = list(model.named_parameters())
    decayed = [parameter for name, parameter in parameters if not name.endswith(NO_DECAY)]
    undecayed = [parameter for name, parameter in parameters if name.endswith(NO_DECAY)]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
