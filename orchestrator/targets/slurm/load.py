"""SBATCH_*, orch-slurm.toml and --slurm KEY=VALUE -> SlurmSettings: each wins over those before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.targets.slurm.image import LISTS, NAMES, Image
from orchestrator.targets.slurm.settings import FLAGS, SlurmSettings

FILE = Path("orch-slurm.toml")
CONTAINER = "container-"  # how settings of an image begin, as pairs
TEXT_SETTINGS = ("root", "python", "local", "login", "runs", "pmi", "allocation")
COMMAND_LINE = "asked for"  # why an option of the command line has its value
SETUP, MAX_REQUEUES = "setup", "max-requeues"
# sbatch(1), INPUT ENVIRONMENT VARIABLES: those whose option has another name.
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
    """The fields mean what Image says."""

    image: str | None = None
    python: str | None = None
    mounts: list[str] | None = None
    env_file: str | None = None
    arguments: list[str] | None = None


class SlurmFile(StrictModel):
    """orch-slurm.toml; the fields mean what SlurmSettings says."""

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
    path: Path | None, pairs: Iterable[str], environ: Mapping[str, str] = os.environ, *, image: str | None = None
) -> SlurmSettings:
    """`image`: as --container says it. Raises RequestError."""
    found = SlurmSettings(image=Image(path=""))
    for name, value in sorted(environ.items()):
        if name.startswith("SBATCH_") and name not in NOT_OPTIONS:
            option = VARIABLES.get(name) or name.removeprefix("SBATCH_").lower().replace("_", "-")
            found = with_option(found, option, value, name)
    values = read_toml(path, SlurmFile) if path else read_current_folder_toml(FILE, SlurmFile, "--slurm-file")
    if values is not None:
        found = with_file(found, values, path or FILE)
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if name in TEXT_SETTINGS:
            found = with_own(found, {name: text})
        elif name == SETUP:
            found = replace(found, setup=(*found.setup, text))
        elif name == MAX_REQUEUES:
            found = replace(found, max_requeues=requeue_limit(text))
        elif name.startswith(CONTAINER):
            found = with_container(found, name.removeprefix(CONTAINER), text)
        elif equals or name in FLAGS:
            found = with_option(found, name, text, COMMAND_LINE)
        else:
            raise RequestError(f"--slurm {pair}: expected KEY=VALUE.", hint="--slurm time=2:00:00")
    return with_image(found, image)


def with_image(found: SlurmSettings, image: str | None) -> SlurmSettings:
    """Settings of an image count where there is one. A file here is named from here."""
    assert found.image is not None
    path = found.image.path if image is None else image
    if not path:
        return replace(found, image=None)
    if not found.login and "://" not in path:
        path = os.path.abspath(path)
    return replace(found, image=replace(found.image, path=path))


def with_container(found: SlurmSettings, name: str, text: str) -> SlurmSettings:
    """With another value, or one more word of a list. Raises RequestError."""
    if name not in NAMES:
        known = [CONTAINER + one for one in NAMES]
        raise RequestError(
            f"--slurm {CONTAINER}{name}: orch has no such setting.",
            hint=did_you_mean(CONTAINER + name, known)
            or f"--container IMAGE says the image; there are {', '.join(known)}.",
        )
    assert found.image is not None
    field = name.replace("-", "_")
    value: Any = (*getattr(found.image, field), text) if name in LISTS else text
    return replace(found, image=replace(found.image, **{field: value}))


def with_file(found: SlurmSettings, values: SlurmFile, source: Path) -> SlurmSettings:
    """Return the settings with the values of a file."""
    own = {name: getattr(values, name) for name in TEXT_SETTINGS if getattr(values, name) is not None}
    found = with_own(found, own)
    found = replace(found, setup=tuple(values.setup), max_requeues=values.max_requeues)
    table = values.container.model_dump(exclude_none=True)
    path = table.pop("image", "")
    if path and not found.login:
        path = os.path.join(source.parent, path)
    lists = {name: tuple(table[name]) for name in LISTS if name in table}
    found = replace(found, image=Image(path=path, **{**table, **lists}))
    for name, value in values.sbatch.items():
        if value is not False:
            text = "" if value is True else str(value)
            found = with_option(found, name, text, str(source))
    return found


def requeue_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(f"--slurm {MAX_REQUEUES}={text}: expected a number.", hint=f"--slurm {MAX_REQUEUES}=10")
    return int(text)


def with_option(found: SlurmSettings, name: str, value: str, why: str) -> SlurmSettings:
    """`exclusive=yes` is as good as `exclusive`."""
    name = name.replace("_", "-")
    value = "" if name in FLAGS and value in ("yes", "true", "1") else value
    return replace(found, sbatch={**found.sbatch, name: value}, why={**found.why, name: why})


def with_own(found: SlurmSettings, own: dict[str, str]) -> SlurmSettings:
    """An empty text takes back what was said before."""
    return replace(
        found,
        root=own.get("root", found.root) or None,
        python=own.get("python", found.python) or None,
        local=own.get("local", found.local) or None,
        login=own.get("login", found.login) or None,
        runs=own.get("runs", found.runs) or None,
        pmi=own.get("pmi", found.pmi),
        allocation=own.get("allocation", found.allocation),
    )
