"""Models and data sets of a hub that `orch sync` has copied to the node."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from orch_node import program

FOLDER = "hub"  # next to train/: a cache of the hub's client
CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")  # the second is the name in huggingface_hub before 0.20
# A user who sets one of these has chosen a cache.
USER_CACHES = ("HF_HOME", *CACHES, "TRANSFORMERS_CACHE")
OFFLINE = "HF_HUB_OFFLINE"


def with_synced_hub(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's environment in which the hub's client finds the copied models and data sets.

    Without a connection to the hub, all ranks use the same revision, and none waits for a timeout.
    """
    folder = program.ROOT / FOLDER
    if any(environment.get(name) for name in USER_CACHES) or not has_copies(folder):
        return dict(environment)
    return {OFFLINE: "1", **environment, **dict.fromkeys(CACHES, str(folder))}


def has_copies(folder: Path) -> bool:
    """Return whether a cache has a model or a data set."""
    return any(any(folder.glob(f"{kind}--*")) for kind in ("models", "datasets"))


def use_synced_data() -> None:
    """Make load_dataset("NAME") read a copied data set.

    The package `datasets` does not look for data files in the hub's cache while it is offline.
    """
    folder = program.ROOT / FOLDER
    if os.environ.get(CACHES[0]) != str(folder) or os.environ.get(OFFLINE) in (None, "", "0"):
        return

    def patch(module: ModuleType) -> None:
        original = module.dataset_module_factory

        @functools.wraps(original)
        def load_copy(path: str, revision: Any = None, *args: Any, **kwargs: Any) -> Any:
            copy = None if Path(path).exists() else data_copy(folder, path, str(revision or "main"))
            return original(str(copy) if copy else path, revision, *args, **kwargs)

        module.dataset_module_factory = load_copy  # type: ignore[attr-defined]

    from orch_node.rank.frameworks import AfterImport  # wrappers do without it

    sys.meta_path.insert(0, AfterImport("datasets.load", patch))


def data_copy(folder: Path, name: str, revision: str) -> Path | None:
    """Return the folder of a data set's revision in a cache, or None if it is not there."""
    storage = folder / f"datasets--{name.replace('/', '--')}"
    reference = storage / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    copy = storage / "snapshots" / commit
    return copy if copy.is_dir() else None
