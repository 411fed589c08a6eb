"""Learn the settings of a recipe from the argument parser of its script."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import LIB, STANDALONE, cache_home, private_folder, write_whole
from orchestrator.model.recipe import Recipe, Setting, Value, type_of

PROGRESS = logging.getLogger(__name__)
PROGRAM = STANDALONE / "script_arguments.py"
PARSER_SECONDS = 300.0  # importing torch and transformers from a shared file system can be slow
CHECK_HINT = "orch runs the script up to its argument parser, to check its settings. Nothing was started."
PARSER = re.compile(rb"argparse|Argument_?Parser|orch_training|tyro", re.IGNORECASE)
TRACEBACK_LINE = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
MISSING = "ModuleNotFoundError: No module named "


def with_parser(recipe: Recipe, python: str = "") -> Recipe:
    """Return a recipe with the settings that the parser of its script knows.

    Args:
        recipe: the recipe.
        python: the ranks' Python if it runs on this machine, or '' for that of orch.

    Raises:
        RequestError: if the script fails before it parses its arguments, or does not know a setting of recipe.toml.
    """
    python = python or sys.executable
    settings = parser_settings(recipe, python)
    if isinstance(settings, str):
        # The type of a default may be narrower than what the parser accepts: 1 for a number.
        return replace(
            recipe, declared={name: Setting() for name in recipe.defaults} | {**recipe.declared}, unchecked=settings
        )
    has_parser = bool(settings)
    if not has_parser:
        settings = {name: Setting(type_of(value)) for name, value in recipe.defaults.items()} | {**recipe.declared}
    recipe = replace(recipe, declared={**recipe.declared, **settings}, has_parser=has_parser)
    for problem, hint in wrong_values(recipe):
        raise RequestError(f"{Path(recipe.script).parent}/recipe.toml: {problem}.", hint=hint)
    return recipe


def parser_settings(recipe: Recipe, python: str) -> dict[str, Setting] | str:
    """Return the settings that the parser knows; none without a parser, or why they are not known on this machine.

    Only a script that uses a parser of argparse's kind is run. The settings are cached until it, the modules next to
    it, or the packages of the Python change.
    """
    modules = [file for file in recipe.files if file.endswith(".py")]
    if recipe.files and not any(PARSER.search(Path(file).read_bytes()) for file in modules):
        return {}
    folder = private_folder(cache_home() / "settings")
    content = [python, recipe.script, sorted(recipe.environment.items()), *map(file_state, sources(recipe, python))]
    path = folder / f"{hashlib.sha256(json.dumps(content).encode()).hexdigest()}.json"
    if path.exists():
        return {name: Setting(**fields) for name, fields in json.loads(path.read_text()).items()}
    PROGRESS.info("settings: reading the arguments of %s (once)", Path(recipe.script).name)
    settings = query_parser(recipe, python)
    if not isinstance(settings, str):
        write_whole(path, json.dumps({name: asdict(setting) for name, setting in settings.items()}))
    return settings


def sources(recipe: Recipe, python: str) -> Iterator[Path]:
    """Yield the files on which the parser depends: modules of the recipe and of orch, and folders of packages."""
    folder = Path(recipe.script).parent
    yield from sorted((folder if recipe.files else folder.parent).rglob("*.py"))
    yield from sorted((LIB / "orch_training").rglob("*.py"))
    yield PROGRAM
    yield from sorted(Path(python).parent.parent.glob("lib*/python*/site-packages"))


def file_state(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def query_parser(recipe: Recipe, python: str) -> dict[str, Setting] | str:
    """Return what parser_settings() returns, by running the script."""
    path = os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **recipe.environment, "PYTHONPATH": path}
    command = [python, str(PROGRAM), recipe.script]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=PARSER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{recipe.script} does not parse its arguments: {error}.", hint=CHECK_HINT) from None
    if done.returncode == 0:
        options = json.loads(done.stdout or "{}")
        return {name: Setting(**{**fields, "choices": tuple(fields["choices"])}) for name, fields in options.items()}
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if reason.startswith(MISSING):
        module = reason.removeprefix(MISSING).split(";")[0].strip("'")
        return f"{python} has no {module}; the script checks its arguments when the ranks start"
    frames = TRACEBACK_LINE.findall(done.stderr) or [(recipe.script, "")]
    raise RequestError(f"{', line '.join(filter(None, frames[-1]))}: {reason.removesuffix('.')}.", hint=CHECK_HINT)


def wrong_values(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield what does not match the settings of a recipe, and what to do about it."""
    excludes = {f"excludes.{name}": [name, *names] for name, names in recipe.excludes.items()}
    tables: dict[str, Mapping[str, Value]] = {"settings": recipe.defaults}
    tables |= {f"presets.{name}": values for name, values in recipe.presets.items()}
    for table, names in {"paths": recipe.paths, **excludes, **tables}.items():
        for name in names:
            if name not in recipe.declared:
                listing = 'Correct it, or declare it in [settings]: NAME = { type = "text" }.'
                yield (
                    f"{table}: the script has no argument '--{name}'",
                    did_you_mean(name, recipe.declared, listing=listing),
                )
    for table, values in tables.items():
        for name, value in values.items():
            setting = recipe.declared[name]
            if not setting.accepts(value):
                yield f"{table}.{name} = {value}: not {setting.expected}", "Correct it, or the type of the argument."
