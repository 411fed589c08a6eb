"""Renders Kubernetes objects as YAML documents."""

from __future__ import annotations

from typing import Any

import yaml

Object = dict[str, Any]


class Dumper(yaml.SafeDumper):
    """A dumper that writes texts with several lines in block style, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text and text.isascii() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, represent_text)


def as_yaml(objects: tuple[Object, ...]) -> str:
    """Return the objects as YAML documents, in this order."""
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
