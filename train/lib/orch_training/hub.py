"""Models and data sets from a hub."""

from __future__ import annotations

import socket
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from orch_training.errors import RecipeError

OFFLINE_HINT = "Without access to a hub, name a folder that all nodes have."


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
    """Return the rows of one split of a data set."""
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
