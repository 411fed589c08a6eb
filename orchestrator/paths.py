"""Paths of the files that are installed with orch: train/, inventory/, playbooks/."""

from __future__ import annotations

from pathlib import Path

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
