"""TOML files -> checked models; what is wrong is said with file, line and key."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import RequestError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Model = TypeVar("Model", bound=StrictModel)


def read_toml(path: Path, model: type[Model]) -> Model:
    """Raises RequestError that names the file, the line and the key."""
    try:
        text = path.read_text(encoding="utf-8")
        return model.model_validate(tomllib.loads(text))
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}.",
            hint="Name a file that is there and that you may read.",
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(
            f"{path}: {error}", hint="It is TOML in UTF-8: lines of KEY = VALUE, texts in quotes."
        ) from None
    except ValidationError as error:
        # A misspelt key is unknown, and its right name is missing: the former says more.
        first = max(error.errors(), key=lambda one: one["type"] == "extra_forbidden")
        keys = [str(part) for part in first["loc"]]
        line = key_line(text, keys)
        raise RequestError(
            f"{path}, line {line}: {'.'.join(keys)}: {explain(first['type'])}",
            hint=key_hint(first["type"], keys, model),
        ) from None


def key_line(text: str, keys: list[str]) -> int:
    """The line of a key: the last of `keys` that some line of the file starts with, else 1."""
    for key in reversed(keys):
        pattern = re.compile(rf'^\s*(?:\[+[\w.]*\b)?"?{re.escape(key)}"?\s*[=\].]', re.MULTILINE)
        if match := pattern.search(text):
            return text.count("\n", 0, match.end()) + 1
    return 1


def explain(kind: str) -> str:
    words = {"extra_forbidden": "unknown key", "missing": "is missing"}
    return words.get(kind, f"has the wrong type ({kind.replace('_', ' ')})")


def key_hint(kind: str, keys: list[str], model: type[StrictModel]) -> str:
    known = kind == "extra_forbidden" and len(keys) == 1
    return did_you_mean(keys[0], model.model_fields) if known else ""
