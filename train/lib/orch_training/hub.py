"""Models and data sets of a hub."""

from __future__ import annotations

import socket
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from orch_training.errors import RecipeError

WAY_OUT = "Where no hub can be reached, name a folder that all nodes have."


@cache
def is_known() -> bool:
    """Whether the hub's host name is: where it is not, asking again for a minute is no use, and
    only what was fetched before can serve. A proxy looks names up itself."""
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
    """One split of a data set, row by row."""
    try:
        from datasets import config, load_dataset
    except ImportError as error:
        raise RecipeError(
            "--dataset_name needs the package `datasets`; install it, or pass --train_file and --validation_file."
        ) from error
    if not is_known():
        config.HF_HUB_OFFLINE = config.HF_DATASETS_OFFLINE = True  # its old name, too
    try:
        return load_dataset(name, configuration, split=split)
    except Exception as error:  # network, name, split and script errors have no common class
        reason = str(error).splitlines()[0]
        raise RecipeError(f"cannot load the data set {name!r}: {reason} {WAY_OUT}") from error
