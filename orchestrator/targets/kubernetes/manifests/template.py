"""Fill in the templates of Kubernetes objects, which are the YAML files in orchestrator/templates/kubernetes.

`$NAME` stands for a value. It is filled in after the YAML has been parsed, so that no text can change the structure. A
field with an empty value is left out. In a list, `$*NAME` stands for any number of entries.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from orchestrator.planning.plan import Object

EMPTY: tuple[Any, ...] = (None, "", (), [], {})


@cache
def documents(name: str) -> tuple[Object, ...]:
    """Return the documents of a template."""
    return tuple(yaml.safe_load_all(pkgutil.get_data("orchestrator", f"templates/kubernetes/{name}.yaml") or b""))


def render(name: str, values: Mapping[str, Any]) -> tuple[Object, ...]:
    """Return the objects of a template with these values."""
    return tuple(fill(document, values) for document in documents(name))


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with these values."""
    if isinstance(template, dict):
        filled = {key: fill(value, values) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value not in EMPTY or template[key] == value}
    if isinstance(template, list):
        return [item for entry in template for item in entries(entry, values)]
    return values[template[1:]] if isinstance(template, str) and template.startswith("$") else template


def entries(template: Any, values: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a list that an entry of a template stands for."""
    if isinstance(template, str) and template.startswith("$*"):
        return list(values[template[2:]])
    return [fill(template, values)]
