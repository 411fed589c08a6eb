"""Read SlurmSettings from SBATCH_*, orch-slurm.toml and --slurm KEY=VALUE.

Each of these sources takes precedence over those named before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.targets.batch.image import LISTS, NAMES, Image
from orchestrator.targets.batch.settings import FLAGS, SlurmSettings

FILE = Path("orch-slurm.toml")
TEXT_SETTINGS = ("root", "python", "local", "login", "runs", "pmi", "allocation")
COMMAND_LINE = "requested"  # The reason shown for options of the command line.
SETUP, MAX_REQUEUES = "setup", "max-requeues"
# The variables whose option has a different name; see INPUT ENVIRONMENT VARIABLES in sbatch(1).
VARIABLES = {"SBATCH_TIMELIMIT": "time", "SBATCH_MEM_PER_NODE": "mem"}
NOT_OPTIONS = (
    "SBATCH_EXPORT",
    "SBATCH_DEBUG",
    "SBATCH_WAIT",
    "SBATCH_OUTPUT",
    "SBATCH_ERROR",
    "SBATCH_JOB_NAME",
    "SBATCH_OPEN_MODE",
    "SBATCH_ARRAY_INX",
)


class ContainerTable(StrictModel):
    """The [container] table of orch-slurm.toml; Image describes its fields."""

    image: str | None = None
    python: str | None = None
    mounts: list[str] | None = None
    env_file: str | None = None
    arguments: list[str] | None = None


class SlurmFile(StrictModel):
    """The contents of orch-slurm.toml; SlurmSettings describes the fields."""

    root: str | None = None
    python: str | None = None
    local: str | None = None
    login: str | None = None
    runs: str | None = None
    pmi: str | None = None
    allocation: str | None = None
    setup: list[str] = Field(default_factory=list)
    max_requeues: int | None = Field(None, alias="max-requeues", ge=0)
    container: ContainerTable = Field(default_factory=ContainerTable)
    sbatch: dict[str, str | int | bool] = Field(default_factory=dict)


def slurm_settings(
    path: Path | None,
    assignments: Iterable[str],
    environ: Mapping[str, str] = os.environ,
    *,
    image: str | None = None,
    image_options: Iterable[str] = (),
) -> SlurmSettings:
    """Return the settings for Slurm from the environment, a file and the command line.

    Args:
        path: a settings file; None for orch-slurm.toml in the current folder, if there is one.
        assignments: the values of --slurm, as KEY=VALUE or the name of a flag.
        environ: the environment, whose SBATCH_* variables are read.
        image: the value of --image; None if the option is not used.
        image_options: the values of --image-option.

    Raises:
        RequestError: if the file or one of the assignments is malformed.
    """
    settings = SlurmSettings(image=Image(path=""))
    for name, value in sorted(environ.items()):
        if name.startswith("SBATCH_") and name not in NOT_OPTIONS:
            option = VARIABLES.get(name) or name.removeprefix("SBATCH_").lower().replace("_", "-")
            settings = with_option(settings, option, value, name)
    values = read_toml(path, SlurmFile) if path else read_current_folder_toml(FILE, SlurmFile, "--slurm-file")
    if values is not None:
        settings = with_file(settings, values, path or FILE)
    for assignment in assignments:
        name, equals, option_value = assignment.partition("=")
        if name in TEXT_SETTINGS:
            settings = with_texts(settings, {name: option_value})
        elif name == SETUP:
            settings = replace(settings, setup=(*settings.setup, option_value))
        elif name == MAX_REQUEUES:
            settings = replace(settings, max_requeues=requeue_limit(option_value))
        elif equals or name in FLAGS:
            settings = with_option(settings, name, option_value, COMMAND_LINE)
        else:
            raise RequestError(f"--slurm {assignment}: expected KEY=VALUE.", hint="Example: --slurm time=2:00:00")
    for option in image_options:
        settings = with_image_option(settings, option)
    return with_image(settings, image)


def with_image(settings: SlurmSettings, image: str | None) -> SlurmSettings:
    """Return the settings with the image's path resolved, or without an image if it has no path.

    A relative path refers to the current folder, unless there is a login node.
    """
    assert settings.image is not None
    path = settings.image.path if image is None else image
    if not path:
        return replace(settings, image=None)
    if not settings.login and "://" not in path:
        path = os.path.abspath(path)
    return replace(settings, image=replace(settings.image, path=path))


def with_image_option(settings: SlurmSettings, option: str) -> SlurmSettings:
    """Return the settings with one value of the image replaced, or one added to a list.

    Raises:
        RequestError: if there is no such setting.
    """
    name, equals, text = option.partition("=")
    if not equals:
        raise RequestError(
            f"--image-option {option}: expected KEY=VALUE.", hint="Example: --image-option mounts=/data:/data"
        )
    if name not in NAMES:
        raise RequestError(f"--image-option {name}: unknown key.", hint=did_you_mean(name, NAMES))
    assert settings.image is not None
    value: Any = (*getattr(settings.image, name), text) if name in LISTS else text
    return replace(settings, image=replace(settings.image, **{name: value}))


def with_file(settings: SlurmSettings, values: SlurmFile, source: Path) -> SlurmSettings:
    """Return the settings with the values of a file."""
    texts = {name: getattr(values, name) for name in TEXT_SETTINGS if getattr(values, name) is not None}
    settings = with_texts(settings, texts)
    settings = replace(settings, setup=tuple(values.setup), max_requeues=values.max_requeues)
    table = values.container.model_dump(exclude_none=True)
    path = table.pop("image", "")
    if path and not settings.login:
        path = os.path.join(source.parent, path)
    lists = {name: tuple(table[name]) for name in LISTS if name in table}
    settings = replace(settings, image=Image(path=path, **{**table, **lists}))
    for name, value in values.sbatch.items():
        if value is not False:
            text = "" if value is True else str(value)
            settings = with_option(settings, name, text, str(source))
    return settings


def requeue_limit(text: str) -> int:
    """Return the limit on requeues, given as text.

    Raises:
        RequestError: if the text is not a number.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(
            f"--slurm {MAX_REQUEUES}={text}: expected a number.", hint=f"Example: --slurm {MAX_REQUEUES}=10"
        )
    return int(text)


def with_option(settings: SlurmSettings, name: str, value: str, source: str) -> SlurmSettings:
    """Return the settings with one option of sbatch; `exclusive=yes` is the same as `exclusive`."""
    name = name.replace("_", "-")
    value = "" if name in FLAGS and value in ("yes", "true", "1") else value
    return replace(settings, sbatch={**settings.sbatch, name: value}, sources={**settings.sources, name: source})


def with_texts(settings: SlurmSettings, texts: dict[str, str]) -> SlurmSettings:
    """Return the settings with these texts replaced; an empty text resets a setting to None."""
    return replace(
        settings,
        root=texts.get("root", settings.root) or None,
        python=texts.get("python", settings.python) or None,
        local=texts.get("local", settings.local) or None,
        login=texts.get("login", settings.login) or None,
        runs=texts.get("runs", settings.runs) or None,
        pmi=texts.get("pmi", settings.pmi),
        allocation=texts.get("allocation", settings.allocation),
    )
