"""Reads a configuration file of accelerate, YAML or JSON."""

from __future__ import annotations

from pathlib import Path

import yaml

from orchestrator.errors import RequestError
from orchestrator.planning.accelerate_options import AccelerateOptions, parse_options

DEFAULT = "~/.cache/huggingface/accelerate/default_config.yaml"


def accelerate_config(name: str) -> AccelerateOptions:
    """Return the options in a configuration file of accelerate.

    Raises:
        RequestError: if the file cannot be read.
        PlanError: if orch cannot train with it.
    """
    path = Path(name).expanduser()
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(
            f"--accelerate-config {name}: {error}", hint=f"`accelerate config` creates {DEFAULT}."
        ) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise RequestError(
            f"--accelerate-config {name} is not a configuration file: it has no names and values.",
            hint=f"`accelerate config` creates {DEFAULT}.",
        )
    return parse_options(values, str(path))
