"""A configuration file of accelerate, YAML or JSON, as a mapping."""

from __future__ import annotations

from pathlib import Path

import yaml

from orchestrator.errors import RequestError
from orchestrator.planning import accelerate_options as accelerate_file
from orchestrator.planning.accelerate_options import AccelerateOptions

DEFAULT = "~/.cache/huggingface/accelerate/default_config.yaml"


def accelerate_config(name: str) -> AccelerateOptions:
    """Raises RequestError for a file that cannot be read, PlanError for one that is for GPUs."""
    path = Path(name).expanduser()
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(
            f"--accelerate-config {name}: {error}", hint=f"`accelerate config` writes {DEFAULT}."
        ) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise RequestError(
            f"--accelerate-config {name} is no configuration: no names and values.",
            hint=f"`accelerate config` writes {DEFAULT}.",
        )
    return accelerate_file.read(values, str(path))
