"""Loads models, tokenizers and data sets of a hub; all ranks and world sizes get the same weights."""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from transformers import AutoConfig, AutoTokenizer, set_seed

from orch_training import RecipeError, describe, kernels
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
    with suppress(OSError):
        return bool(socket.getaddrinfo(url.hostname, url.port or url.scheme))
    return False


@contextmanager
def loading(kind: str, name: str) -> Iterator[None]:
    """Raise a RecipeError for any error in the block: those of networks, files and their scripts have no class."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as error:
        hint = f" {OFFLINE_HINT}" if is_hub_name(name) else ""
        raise RecipeError(f"cannot load the {kind} {name!r}: {' '.join(str(error).split())}{hint}") from error


def hub_rows(name: str, configuration: str | None, split: str) -> Any:
    try:
        from datasets import config, load_dataset
    except ImportError as error:
        raise RecipeError(describe("no-datasets")) from error
    if not is_reachable():
        config.HF_HUB_OFFLINE = config.HF_DATASETS_OFFLINE = True  # the second is the old name
    with loading("data set", name):
        return load_dataset(name, configuration, split=split)


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
    with loading("configuration", name):
        config = AutoConfig.from_pretrained(
            locate(name), attn_implementation=kernels.attention(), **changes, **hub_arguments(args, name)
        )
    if args.dropout is not None:
        for field, value in config.to_dict().items():  # hidden_dropout_prob, attention_probs_dropout_prob, ...
            if "dropout" in field and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(config, field, args.dropout)
    return config


def load_model(kind: Any, args: ModelArguments, seed: int) -> Any:
    """Return a model of an Auto class in fp32, whose head has the two outputs that all recipes need.

    Missing weights, and those of a head with other outputs, are drawn from the seed.
    """
    set_seed(seed)
    # The problem is that of the head that is replaced, such as a regression.
    config = load_config(args, args.config_name or args.model_name_or_path, num_labels=2, problem_type=None)
    # New and unused weights are reported below, without transformers' table of them. A level above WARNING would
    # make it look for tensor parallelism, and warn about that.
    logging.getLogger("transformers.modeling_utils").addFilter(lambda record: record.levelno >= logging.ERROR)
    with loading("model", args.model_name_or_path):
        model, loading_info = kind.from_pretrained(
            locate(args.model_name_or_path),
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **hub_arguments(args, args.model_name_or_path),
        )
    # 4.52 returns only the names, later versions also the sizes.
    resized = [entry if isinstance(entry, str) else entry[0] for entry in loading_info["mismatched_keys"]]
    if names := sorted(name for name in resized if name.startswith(f"{model.base_model_prefix}.")):
        source = args.config_name or "its configuration"
        values = {"model": args.model_name_or_path, "source": source, "names": summarize_names(names)}
        raise RecipeError(describe("wrong-sizes", **values))
    # More new and unused weights than those of a new head suggest a wrong model.
    if names := sorted({*loading_info["missing_keys"], *resized}):
        count = len(model.state_dict())
        note(f"{len(names)} of {count} weights are new, drawn from the seed: {summarize_names(names)}.")
    if names := sorted(loading_info["unexpected_keys"]):
        note(f"the file contains weights that this model does not have: {summarize_names(names)}.")
    return model.float()


def summarize_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if names[MAX_LISTED:] else ""
    return ", ".join(names[:MAX_LISTED]) + more


def load_tokenizer(args: Any) -> Any:
    name = args.tokenizer_name or args.model_name_or_path
    with loading("tokenizer", name):
        tokenizer = AutoTokenizer.from_pretrained(locate(name), use_fast=True, **hub_arguments(args, name))
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
