"""The ccl bindings as sources, and as a wheel that `orch setup` makes of them in an environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator.files import PUBLIC, short_digest, write_whole
from orchestrator.paths import SHARE

STAMP = "made-of.json"
WHEELS = "oneccl_bind_pt-*.whl"


def sources_digest() -> str:
    return short_digest(sources(SHARE / "bindings"), SHARE)


def sources(bindings: Path) -> Iterator[Path]:
    """What the bindings are built from, in a fixed order."""
    for path in sorted(bindings.rglob("*")):
        made = "build" in path.relative_to(bindings).parts or path.name == "_built.py"  # by setup.py
        if path.suffix in {".cpp", ".h", ".c", ".py", ".toml"} and not made:
            yield path


def made(folder: Path, torch: str) -> Path | None:
    """The wheel there, unless sources, torch or compiler's flags are others than it was made of."""
    try:
        same = json.loads((folder / STAMP).read_text()) == made_of(torch)
    except (OSError, ValueError):
        return None
    return next(folder.glob(WHEELS), None) if same else None


def made_of(torch: str) -> dict[str, str]:
    """`torch`: its version, with its build."""
    return {"torch": torch, "of": sources_digest(), "flags": os.environ.get("CXXFLAGS", "")}


def note(folder: Path, torch: str) -> None:
    """Write down what the wheel there was made of."""
    write_whole(folder / STAMP, json.dumps(made_of(torch)) + "\n", mode=PUBLIC)
