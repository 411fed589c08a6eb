"""Where the files that travel with orch are: train/, inventory/, playbooks/."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
# The wheel carries them inside the package; in a checkout they are its neighbours.
SHARE = HERE / "share" if (HERE / "share").is_dir() else HERE.parent
TRAIN = SHARE / "train"
LIB = TRAIN / "lib"  # what is shared with the nodes: orch_node.protocol
RECIPES = TRAIN / "recipes"
STANDALONE = LIB / "orch_node" / "standalone"
INVENTORY = SHARE / "inventory"
STACKS = HERE / "stacks" / "data"
TEMPLATES = HERE / "templates"
