"""Loads models, tokenizers and data sets of a hub; all ranks and world sizes get the same weights."""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from transformers import AutoConfig, AutoTokenizer, set_seed

from orch_training import RecipeError, kernels
from orch_training.arguments import HubArguments, ModelArguments
from orch_training.ranks import note

OFFLINE_HINT = "Without access to a hub, name a folder that all nodes have."
PACKAGE = "package:"
MAX_LISTED = 4  # names of weights


@cache
def is_reachable() -> bool:
    """Return whether the hub's host name can be resolved; a proxy resolves it itself.

    If it cannot, only downloaded files can be used, and retrying for a minute is pointless.
    """
    from huggingface_hub import constants

    url = urlsplit(constants.ENDPOINT)
    if getproxies().keys() & {url.scheme, "all"}:
        return True
    try:
        socket.getaddrinfo(url.hostname, url.port or url.scheme)
    except OSError:
        return False
    return True


def hub_rows(name: str, configuration: str | None, split: str) -> Any:
    try:
        from datasets import config, load_dataset
    except ImportError as error:
        raise RecipeError(
            "--dataset_name needs the package `datasets`; install it, or pass --train_file and --validation_file."
        ) from error
    if not is_reachable():
        config.HF_HUB_OFFLINE = config.HF_DATASETS_OFFLINE = True  # the second is the old name
    try:
        return load_dataset(name, configuration, split=split)
    except Exception as error:  # network, name, split and script errors have no common class
        reason = str(error).splitlines()[0]
        raise RecipeError(f"cannot load the data set {name!r}: {reason} {OFFLINE_HINT}") from error


def locate(name: str) -> str:
    """Return the folder of package:NAME/FOLDER in the installed package; other names are returned unchanged."""
    if not name.startswith(PACKAGE):
        return name
    package, _, inside = name[len(PACKAGE) :].partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError(f"{name}: the Python package {package!r} is not installed.")
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not (folder / "config.json").is_file():
        raise RecipeError(f"{name}: {folder} contains no model (config.json is missing).")
    return str(folder)


def load_config(args: HubArguments, name: str, **changes: Any) -> Any:
    """Return the configuration of a model, with changed values and the dropout of the arguments."""
    try:
        config = AutoConfig.from_pretrained(
            locate(name), attn_implementation=kernels.attention(), **changes, **hub_arguments(args, name)
        )
    except (OSError, ValueError, ImportError) as error:
        raise load_error("configuration", name, error) from error
    set_dropout(config, args.dropout)
    return config


def load_model(kind: Any, args: ModelArguments, seed: int) -> Any:
    """Return a model of an Auto class in fp32, whose head has the two outputs that all recipes need.

    Missing weights, and those of a head with other outputs, are drawn from the seed.
    """
    set_seed(seed)
    # The problem is that of the head that is replaced, such as a regression.
    config = load_config(args, args.config_name or args.model_name_or_path, num_labels=2, problem_type=None)
    try:
        # New and unused weights are reported below, without transformers' table of them. A level above WARNING would
        # make it look for tensor parallelism, and warn about that.
        logging.getLogger("transformers.modeling_utils").addFilter(is_error)
        model, loading_info = kind.from_pretrained(
            locate(args.model_name_or_path),
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **hub_arguments(args, args.model_name_or_path),
        )
    except (OSError, ValueError, ImportError) as error:
        raise load_error("model", args.model_name_or_path, error) from error
    # 4.52 returns only the names, later versions also the sizes.
    resized = [entry if isinstance(entry, str) else entry[0] for entry in loading_info["mismatched_keys"]]
    if names := sorted(name for name in resized if name.startswith(f"{model.base_model_prefix}.")):
        source = args.config_name or "its configuration"
        raise RecipeError(
            f"weights of {args.model_name_or_path} do not have the size in {source}: {summarize_names(names)}."
        )
    report_loaded_weights(
        {*loading_info["missing_keys"], *resized}, loading_info["unexpected_keys"], len(model.state_dict())
    )
    return model.float()


def is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def report_loaded_weights(new: Iterable[str], unused: Iterable[str], count: int) -> None:
    """Report new and unused weights; more than those of a new head suggest a wrong model."""
    if names := sorted(new):
        note(f"{len(names)} of {count} weights are new, drawn from the seed: {summarize_names(names)}.")
    if names := sorted(unused):
        note(f"the file contains weights that this model does not have: {summarize_names(names)}.")


def summarize_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if names[MAX_LISTED:] else ""
    return ", ".join(names[:MAX_LISTED]) + more


def load_tokenizer(args: Any) -> Any:
    name = args.tokenizer_name or args.model_name_or_path
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(name), use_fast=True, **hub_arguments(args, name))
    except (OSError, ValueError) as error:
        raise load_error("tokenizer", name, error) from error
    if not tokenizer.is_fast:
        raise RecipeError(f"{name} has no fast tokenizer, which this recipe needs.")
    return tokenizer


def sequence_length(requested: int, tokenizer: Any, model: Any) -> int:
    """Return the tokens of a sequence: as many as requested, if tokenizer and model allow that."""
    positions = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)  # RoBERTa counts from it
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding)
    ]
    limit = min([int(tokenizer.model_max_length), *positions])
    if requested > limit:
        note(f"--max_seq_length {requested} exceeds the model's limit; using {limit}.")
    return min(requested, limit)


def hub_arguments(args: HubArguments, name: str) -> dict[str, Any]:
    """Return the arguments of from_pretrained for loading `name`."""
    return {
        "local_files_only": is_hub_name(name) and not is_reachable(),
        "cache_dir": args.cache_dir,
        "revision": args.model_revision,
        "token": args.token,
        "trust_remote_code": args.trust_remote_code,
    }


def is_hub_name(name: str) -> bool:
    return bool(name) and not name.startswith(PACKAGE) and not Path(name).exists()


def set_dropout(config: Any, probability: float | None) -> None:
    """Set all dropout probabilities: hidden_dropout_prob, attention_probs_dropout_prob, dropout, ..."""
    if probability is None:
        return
    for name, value in config.to_dict().items():
        if "dropout" in name and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, probability)


def load_error(kind: str, name: str, error: Exception) -> RecipeError:
    reason = " ".join(str(error).split())
    hint = f" {OFFLINE_HINT}" if is_hub_name(name) else ""
    return RecipeError(f"cannot load the {kind} {name!r}: {reason}{hint}")
