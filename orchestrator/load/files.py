"""Reads TOML files into checked models; errors name file, line and key."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TypeVar

from orch_node import permissions
from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import RequestError, describe_invalid, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class StrictModel(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", strict=True)

    @classmethod
    def hint_about_unknown_key(cls, keys: list[str]) -> str:
        """Return what to write in place of an unknown key, whose tables precede it in the list."""
        if len(keys) > 1:
            return ""
        return did_you_mean(keys[0], [field.alias or name for name, field in cls.model_fields.items()])


Model = TypeVar("Model", bound=StrictModel)


def read_current_folder_toml(name: Path, model: type[Model], option: str) -> Model | None:
    """Return the values of a file in the current folder, or None if there is no such file.

    Nobody named the file, so only files of this user and of root count.

    Args:
        name: the file's name.
        model: the file's structure.
        option: the command-line option that names such a file.

    Raises:
        RequestError: if another user owns or can write the file, and as read_toml() does.
    """
    try:
        content = permissions.read_file(name)
    except FileNotFoundError:
        return None
    except permissions.UntrustedError as error:
        raise RequestError(f"{error}.", hint=f"If you trust its author, name the file: {option} {name}") from None
    except OSError as error:
        raise unreadable(name, error) from None
    return parse_toml(content, name, model)


def read_toml(path: Path, model: type[Model]) -> Model:
    """Return the values of a TOML file.

    Raises:
        RequestError: with the file, the line and the key that is wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    return parse_toml(content, path, model)


def unreadable(path: Path, error: OSError) -> RequestError:
    """Return the error for a file that cannot be read."""
    return RequestError(f"{path} cannot be read: {error.strerror}.", hint="Name an existing file that you may read.")


def parse_toml(content: bytes, path: Path, model: type[Model]) -> Model:
    """Return the values in the content of a TOML file.

    Raises:
        RequestError: with the file, the line and the key that is wrong.
    """
    try:
        text = content.decode()
        return model.model_validate(tomllib.loads(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(
            f"{path}: {error}", hint="The file must be TOML in UTF-8: lines of KEY = VALUE, strings in quotes."
        ) from None
    except ValidationError as error:
        # A misspelled key yields two errors, and the unknown name is more helpful than the missing one.
        first = max(error.errors(), key=lambda details: details["type"] == "extra_forbidden")
        keys = [str(part) for part in first["loc"] if part != "[key]"]  # as pydantic calls a key of a mapping
        line = key_line(text, keys)
        raise RequestError(
            f"{path}, line {line}: {'.'.join(keys)}: {describe_invalid(first['msg'])}",
            hint=model.hint_about_unknown_key(keys) if first["type"] == "extra_forbidden" else "",
        ) from None


def key_line(text: str, keys: list[str]) -> int:
    """Return the line of the last of `keys` that begins a line of the file; 1 if none does."""
    for key in reversed(keys):
        pattern = re.compile(rf'^\s*(?:\[+[\w.]*\b)?"?{re.escape(key)}"?\s*[=\].]', re.MULTILINE)
        if match := pattern.search(text):
            return text.count("\n", 0, match.end()) + 1
    return 1
