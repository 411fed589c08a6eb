"""The provenance of a checkpoint: its data, model and code, and the settings that change the computation.

A checkpoint's manifest holds a fingerprint of each. A run that resumed from a checkpoint of other data, another model,
other code of the user or other settings would train a model that nobody requested, so this is an error that names what
has changed. Another version of orch is only a note, so that an update does not stop runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orch_node.protocol.environment import FORCE_RESUME
from orch_node.standalone.receive_files import digest

from orch_training import RecipeError, checkpoint, describe, models, ranks
from orch_training.arguments import HubArguments, compared

FACT = "made_from"  # in a checkpoint's manifest
SETTINGS = "settings"
DIGITS = 16  # of a fingerprint
LIBRARY = Path(__file__).resolve().parent
INCLUDED = LIBRARY.parents[1] / "recipes"  # the recipes that come with orch
ORCH = "orch"  # the fingerprint of orch's own code
MODEL_FILES = ("*.json", "*.txt", "*.safetensors", "*.bin")


def provenance_of(script: str, model: HubArguments, data: Mapping[str, Iterable[Any]], *options: Any) -> dict[str, Any]:
    """Return the fingerprints of what determines a training for manifests; one rank of each node computes them.

    Args:
        script: the file of the recipe's script.
        model: the arguments that name the model.
        data: the tokenized rows of each data set by its name.
        options: dataclasses or mappings with the arguments of the recipe.
    """
    computed: dict[str, str] = {}
    if not ranks.has_group() or os.environ.get("LOCAL_RANK", "0") == "0":
        computed = {name: rows_fingerprint(rows) for name, rows in data.items()}
        computed["model"] = model_fingerprint(model)
        folder = Path(script).resolve().parent
        if folder.is_relative_to(INCLUDED):
            computed[ORCH] = code_fingerprint(LIBRARY, folder)
        else:
            computed |= {ORCH: code_fingerprint(LIBRARY), "code": code_fingerprint(folder)}
    of_rank_0: dict[str, str] = ranks.from_main(computed)
    return {**(computed or of_rank_0), SETTINGS: settings_of(*options)}


def check_provenance(provenance: Mapping[str, Any], start: Path) -> None:
    """Check that a checkpoint was made from the same data, model, code and settings.

    If only orch has changed, print a note.

    Raises:
        RecipeError: if something differs, unless `orch resume --force` was used.
    """
    recorded = ranks.from_main(checkpoint.facts_of(start).get(FACT))
    if not isinstance(recorded, dict):
        return
    if recorded.get(ORCH, "") != provenance[ORCH]:
        ranks.note(f"orch changed since {start.name} was written; the run continues with the installed version.")
    fingerprints = {name: value for name, value in provenance.items() if name not in (ORCH, SETTINGS)}
    changed = [name for name, fingerprint in fingerprints.items() if recorded.get(name, fingerprint) != fingerprint]
    before = recorded.get(SETTINGS) or {}
    for name, value in provenance[SETTINGS].items():
        if before.get(name, value) != value:
            changed.append(f"setting {name} ({value}, before: {before[name]})")
    all_changed = dict.fromkeys(name for names in ranks.gather(changed) for name in names)
    message = f"{', '.join(all_changed)} changed since {start.name} was written"
    if all_changed and not os.environ.get(FORCE_RESUME):
        raise RecipeError(describe("changed-provenance", changes=message))
    if all_changed:
        ranks.note(f"{message}; --force continues from it.")


def rows_fingerprint(rows: Iterable[Any]) -> str:
    """Return the fingerprint of rows: what JSON can express, or dataclasses of it."""
    fingerprint = hashlib.sha256()
    for row in rows:
        fingerprint.update(json.dumps(row, default=dataclasses.asdict, sort_keys=True).encode())
    return fingerprint.hexdigest()[:DIGITS]


def model_fingerprint(args: HubArguments) -> str:
    """Return the fingerprint of a model's files, or of its name and revision on the hub."""
    names = (getattr(args, "model_name_or_path", ""), args.config_name, args.tokenizer_name)
    paths = [Path(models.locate(name)) for name in dict.fromkeys(filter(None, names))]
    fingerprint = hashlib.sha256(args.model_revision.encode())
    for path in paths:
        files = sorted({file for pattern in MODEL_FILES for file in path.glob(pattern)}) if path.is_dir() else []
        fingerprint.update("\n".join(f"{file.name} {digest(file)}" for file in files).encode() or bytes(path))
    return fingerprint.hexdigest()[:DIGITS]


def code_fingerprint(*folders: Path) -> str:
    """Return the fingerprint of the modules in folders."""
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256("\n".join(map(digest, files)).encode()).hexdigest()[:DIGITS]


def settings_of(*options: Any) -> dict[str, Any]:
    """Return the arguments that change the computation, as a manifest holds them."""
    return {
        name: value if value is None or isinstance(value, bool | int | float) else str(getattr(value, "value", value))
        for option in options
        for name, value in (option if isinstance(option, Mapping) else compared(option)).items()
    }
