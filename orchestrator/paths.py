"""Paths of the files that are installed with orch (train/, inventory/, playbooks/), and plug-ins of other packages."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

PACKAGE = Path(__file__).resolve().parent
# They are inside the package in a wheel, and next to it in a checkout.
SHARE = PACKAGE / "share" if (PACKAGE / "share").is_dir() else PACKAGE.parent
TRAIN = SHARE / "train"
LIB = TRAIN / "lib"  # packages that the nodes import, too
RECIPES = TRAIN / "recipes"
STANDALONE = LIB / "orch_node" / "standalone"
INVENTORY = SHARE / "inventory"
STACKS = PACKAGE / "stacks" / "data"
TEMPLATES = PACKAGE / "templates"


@cache
def entry_points() -> EntryPoints:
    """Return the entry points of all installed packages, which takes 10 ms to read."""
    return cast("EntryPoints", importlib.metadata.entry_points())
