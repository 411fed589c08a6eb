"""Advice about a module that ranks do not find: the module of the project that is meant, or the package to add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from orchestrator.model.finding import Finding
from orchestrator.model.imports import script_block, similar_module

NOT_FOUND = "module not found"  # the name of the signature
MODULE = re.compile(r"No module named '([^']+)'")
MOST_MODULES = 2000  # of a project that are compared with the name


def advise_on_module(explanation: Finding, project: Path | None) -> Finding:
    """Return the explanation; if a module is missing, it names the similar one of the project or the lines to paste.

    Args:
        explanation: the explanation of an error.
        project: the folder of the user's code on this machine, if there is one.
    """
    match = MODULE.search(explanation.evidence)
    if explanation.subject != NOT_FOUND or not match:
        return explanation
    modules = list(islice(modules_below(project), MOST_MODULES)) if project else []
    if module := similar_module(match[1], modules):
        return replace(explanation, cure=f"Did you mean your module {module}?")
    if any(module.partition(".")[0] == match[1].partition(".")[0] for module in modules):
        return explanation
    return replace(explanation, cure=f"{explanation.cure} The block:\n{script_block([match[1]])}")


def modules_below(folder: Path) -> Iterator[str]:
    """Yield the names of the modules and packages below a folder, as its scripts import them."""
    for path in sorted(folder.glob("*.py")):
        yield path.stem
    for path in sorted(folder.glob("*/**/*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            yield ".".join(parts).removesuffix(".__init__")
