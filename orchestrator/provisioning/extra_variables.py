"""Variables for a playbook, as the file that Ansible reads: data, and never a template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Ansible's own mark for text that it hands on as it is (parsing/ajson, all versions that orch
# takes). A template runs programs of this machine, and what a node said may look like one.
UNSAFE = "__ansible_unsafe"


def render(variables: Mapping[str, Any]) -> str:
    """JSON in which every text is marked. Raises ValueError for a name that is a mark itself."""
    return json.dumps({name: as_data(value) for name, value in variables.items()})


def as_data(value: Any) -> Any:
    if isinstance(value, str):
        return {UNSAFE: value}
    if isinstance(value, Mapping):
        if marks := [name for name in value if str(name).startswith("__ansible")]:
            raise ValueError(f"{marks[0]} is no name of a variable")
        return {name: as_data(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(one) for one in value]
    return value
