"""Read TOML files into checked models, and recognize files of other tools; errors name file, line and key."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from orch_node import permissions
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import RequestError, describe_invalid, did_you_mean, first_problem
from orchestrator.files import tomllib

READABLE_HINT = "Name an existing file that you may read."


class StrictModel(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", strict=True)

    @classmethod
    def hint_about_unknown_key(cls, keys: list[str]) -> str:
        """Return what to write in place of an unknown key, whose tables precede it in the list."""
        if len(keys) > 1:
            return ""
        return did_you_mean(keys[0], [field.alias or name for name, field in cls.model_fields.items()])


Model = TypeVar("Model", bound=StrictModel)
Texts = Annotated[tuple[str, ...], Field(strict=False)]  # a list in TOML


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
        raise RequestError(f"{name} cannot be read: {error.strerror}.", hint=READABLE_HINT) from None
    return parse_toml(content.decode("utf-8-sig", errors="replace"), name, model)


def read_toml(path: Path, model: type[Model]) -> Model:
    """Return the values of a TOML file.

    Raises:
        RequestError: with the file, the line and the key that is wrong.
    """
    return parse_toml(read_text(path), path, model)


def read_text(path: Path, hint: str = READABLE_HINT) -> str:
    """Return the text of a file; raise RequestError with the hint if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8; save it again as UTF-8"
        raise RequestError(f"{path} cannot be read: {reason}.", hint=hint) from None


Variable = TypeVar("Variable", bound=BaseModel)


def parse_variable(name: str, host: str, value: object, model: type[Variable]) -> Variable:
    """Return the value of an inventory's variable, which is a table.

    Raises:
        RequestError: naming the key that is wrong.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        key, reason = first_problem(error)
        problem = f"{'.'.join(filter(None, [name, key]))} of {host}: {reason}."
        raise RequestError(problem, hint=f"Keys of {name}: {', '.join(model.model_fields)}.") from None


def parse_toml(text: str, path: Path | str, model: type[Model]) -> Model:
    """Return the values in the text of a TOML file.

    Raises:
        RequestError: with the file, the line and the key that is wrong.
    """
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise RequestError.about("invalid-toml", path=path, error=error) from None
    except ValidationError as error:
        # A misspelled key yields two errors, and the unknown name is more helpful than the missing one.
        first = max(error.errors(), key=lambda details: details["type"] == "extra_forbidden")
        keys = [str(part) for part in first["loc"] if part != "[key]"]  # as pydantic calls a key of a mapping

        hint = model.hint_about_unknown_key(keys) if first["type"] == "extra_forbidden" else ""
        problem = f"{path}, line {key_line(text, keys)}: {'.'.join(keys)}: {describe_invalid(first['msg'])}"
        raise RequestError(problem, hint=hint) from None


def key_line(text: str, keys: list[str]) -> int:
    """Return the line of the last of `keys` that begins a line of the file; 1 if none does."""
    for key in reversed(keys):
        pattern = re.compile(rf'^\s*(?:\[+[\w.]*\b)?"?{re.escape(key)}"?\s*[=\].]', re.MULTILINE)
        if match := pattern.search(text):
            return text.count("\n", 0, match.end()) + 1
    return 1


MAX_BYTES = 1_000_000  # of a file that are searched for its kind
STARTED_SCRIPT = re.compile(r"(?m)^(?!\s*#).*?(\S+\.py)\b")


PYTHON_SHEBANG = re.compile(r"#!.*\bpython")
SHELL_SHEBANG = re.compile(r"#!\s*/\S*/(?:env\s+(?:-S\s+)?)?(?:ba|z|k|c|tc|fi|da)?sh\b")
FOREIGN_FILES = Path(__file__).with_name("foreign_files.toml")


@cache
def read_table(path: Path) -> Any:
    """Return the content of a TOML file that comes with orch."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def foreign_kind(table: str, path: Path, text: str, kinds: int | None = None) -> dict[str, str] | None:
    """Return the kind of a file of another tool, among the first ones in a table of foreign_files.toml."""
    entries = read_table(FOREIGN_FILES)[table][:kinds]
    return next((e for e in entries if re.fullmatch(e["name"], path.name) or re.search(e["content"], text)), None)


def check_script_file(path: Path) -> None:
    """Check that a file is not one that another program runs.

    Raises:
        RequestError: if it cannot be read, or is a notebook, a shell script or another file that Python does not run.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.", hint=READABLE_HINT) from None
    # sbatch also runs Python scripts.
    is_python = PYTHON_SHEBANG.match(text) or (path.suffix == ".py" and not SHELL_SHEBANG.match(text))
    if kind := foreign_kind("scripts", path, text, 1 if is_python else None):  # the first one is a notebook
        started = STARTED_SCRIPT.search(text)
        hint = kind["hint"].replace("{path}", str(path)).replace("{script}", started[1] if started else "SCRIPT.py")
        raise RequestError(f"{path} is {kind['title']}, not a Python script.", hint=hint)


def check_requirements_file(path: Path, text: str) -> None:
    """Check that a file is not another tool's list of packages.

    Raises:
        RequestError: if it is one.
    """
    if kind := foreign_kind("requirements", path, text):
        raise RequestError(f"{path} is {kind['title']}, not a requirements file.", hint=kind["hint"])
