"""The model with its tokenizer: where it is, and the same weights for every rank and world size."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, set_seed

from orch_training import checkpoint, hub
from orch_training.arguments import ModelArguments
from orch_training.errors import RecipeError
from orch_training.ranks import note

PACKAGE = "package:"
SHOWN = 4  # names of weights


def locate(name: str) -> str:
    """package:NAME/FOLDER -> the folder in the installed package; all else stays as it is."""
    if not name.startswith(PACKAGE):
        return name
    package, _, inside = name[len(PACKAGE) :].partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError(f"{name}: the Python package {package!r} is not installed here.")
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not (folder / "config.json").is_file():
        raise RecipeError(f"{name}: {folder} holds no model (config.json is missing).")
    return str(folder)


def load_model(kind: Any, args: ModelArguments, seed: int, **settings: Any) -> Any:
    """A model of an Auto class in fp32; weights that are not there, as of a fresh head, come from
    the seed. `settings` go to its configuration.
    """
    set_seed(seed)
    given = hub_arguments(args, args.config_name or "", args.model_name_or_path)
    try:
        config = AutoConfig.from_pretrained(
            locate(args.config_name or place(args)), attn_implementation=args.attn_implementation, **settings, **given
        )
        set_dropout(config, args.dropout)
        model, loaded = with_what_was_loaded(kind, place(args), config=config, **given)
    except (OSError, ValueError, ImportError) as error:
        raise not_loaded("model", args.model_name_or_path, error) from error
    tell_loaded(loaded, len(model.state_dict()))
    return model.float()


def with_what_was_loaded(kind: Any, name: str, **given: Any) -> tuple[Any, Mapping[str, Any]]:
    """-> the model, and which weights were not where. transformers would print a table of it."""
    logger = logging.getLogger("transformers.modeling_utils")
    # Not by its level: from WARNING on it looks for tensor parallelism as well, and complains.
    logger.addFilter(is_error)
    try:
        model, loaded = kind.from_pretrained(name, output_loading_info=True, **given)
    finally:
        logger.removeFilter(is_error)
    return model, loaded


def is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def tell_loaded(loaded: Mapping[str, Any], count: int) -> None:
    """A fresh head is as it should be; more than that shows that the model is another one."""
    if new := sorted(loaded["missing_keys"]):
        note(f"{len(new)} of {count} weights are new, drawn from the seed: {several(new)}.")
    if unused := sorted(loaded["unexpected_keys"]):
        note(f"weights of the file that this model does not have: {several(unused)}.")


def several(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if names[SHOWN:] else ""
    return ", ".join(names[:SHOWN]) + more


def load_tokenizer(args: ModelArguments) -> Any:
    name = args.tokenizer_name or args.model_name_or_path
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(name), use_fast=True, **hub_arguments(args, name))
    except (OSError, ValueError) as error:
        raise not_loaded("tokenizer", name, error) from error
    if not tokenizer.is_fast:
        raise RecipeError(f"{name} has no fast tokenizer, which this recipe needs.")
    return tokenizer


def sequence_length(wanted: int, tokenizer: Any) -> int:
    limit = int(tokenizer.model_max_length)
    if wanted > limit:
        note(f"--max_seq_length {wanted} is over the model's {limit}; {limit} is used.")
    return min(wanted, limit)


def place(args: ModelArguments) -> str:
    return locate(args.model_name_or_path)


def hub_arguments(args: ModelArguments, *names: str) -> dict[str, Any]:
    """`names`: what is loaded."""
    return {
        "local_files_only": any(map(is_of_hub, names)) and not hub.is_known(),
        "cache_dir": args.cache_dir,
        "revision": args.model_revision,
        "token": args.token,
        "trust_remote_code": args.trust_remote_code,
    }


def is_of_hub(name: str) -> bool:
    return bool(name) and not name.startswith(PACKAGE) and not Path(name).exists()


def set_dropout(config: Any, probability: float | None) -> None:
    """All of them: hidden_dropout_prob, attention_probs_dropout_prob, dropout, ..."""
    if probability is None:
        return
    for name, value in config.to_dict().items():
        if "dropout" in name and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, probability)


def not_loaded(what: str, name: str, error: Exception) -> RecipeError:
    reason = " ".join(str(error).split())
    way_out = f" {hub.WAY_OUT}" if is_of_hub(name) else ""
    return RecipeError(f"cannot load the {what} {name!r}: {reason}{way_out}")


def save_model(model: Any, tokenizer: Any, target: Path) -> None:
    """Whole or not at all, like a checkpoint."""
    staged = target.with_name(f".{target.name}-staging")
    try:
        model.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
        checkpoint.seal(staged)
        checkpoint.publish(staged, target)
    except Exception as error:  # OSError, RuntimeError and safetensors' own, for a full disk
        reason = checkpoint.write_failure(error, target.parent)
        raise RecipeError(f"cannot save the model in {target}: {reason}.") from error
