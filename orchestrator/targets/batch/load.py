"""Read BatchSettings from the environment, a file such as orch-slurm.toml and options such as --slurm KEY=VALUE.

Each of these sources takes precedence over those named before it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, create_model, field_validator

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.docker import check_no_image_options
from orchestrator.load.files import StrictModel, read_current_folder_toml, read_toml
from orchestrator.targets.batch.image import LISTS, NAMES, Image
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import RESERVED_OPTIONS, BatchSystem

TEXT_SETTINGS = ("root", "login", "runs", "allocation")
COMMAND_LINE = "requested"  # The reason shown for options of the command line.
SETUP, MAX_REQUEUES = "setup", "max-requeues"
SAME_WORD = 0.8  # the similarity of names of which one is a misspelling; python and partition have 0.67


class ContainerTable(StrictModel):
    """The [container] table of a settings file; Image describes its fields."""

    image: str | None = None
    python: str | None = None
    mounts: list[str] | None = None
    env_file: str | None = None
    arguments: list[str] | None = None


class SettingsFile(StrictModel):
    """The contents of a settings file; BatchSettings describes the fields."""

    root: str | None = None
    python: str | None = None
    login: str | None = None
    runs: str | None = None
    allocation: str | None = None
    setup: list[str] = Field(default_factory=list)
    max_requeues: int | None = Field(None, alias="max-requeues", ge=0)
    container: ContainerTable = Field(default_factory=ContainerTable)
    system: ClassVar[BatchSystem]

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of the file that are outside of its tables."""
        names = [field.alias or name for name, field in cls.model_fields.items()]
        return [name for name in names if name not in ("container", cls.system.submitter)]

    @field_validator("*", mode="before")
    @classmethod
    def check_table(cls, value: Any, info: ValidationInfo) -> Any:
        """Check that the options of a job have values of one line, and that no key of orch is among them."""
        if info.field_name != cls.system.submitter:
            return value
        if not isinstance(value, dict):
            raise ValueError(f"expected a table: a line [{cls.system.submitter}], then options as KEY = VALUE")
        for name, text in value.items():
            if name.replace("_", "-") in cls.key_names():
                raise ValueError(f"{name} is a setting of orch; write it above the line [{info.field_name}]")
            if not isinstance(text, str | int):
                raise ValueError(f'{name}: expected a string; write it in quotes: {name} = "..."')
        return value

    @classmethod
    def hint_about_unknown_key(cls, keys: list[str]) -> str:
        """Return in which table of the file a key belongs."""
        system, name = cls.system, keys[-1]
        key = next((long for long, _ in system.long_options(name, "")), name) if name not in ("l", "W") else name
        key = key.replace("_", "-")
        if len(keys) == 1 and name in ContainerTable.model_fields:
            return f"{name} belongs below a line [container]."
        reserved = {**RESERVED_OPTIONS, **system.reserved}
        if key in reserved and name != "python":
            return reserved[key]
        names = cls.key_names() if len(keys) == 1 else [*ContainerTable.model_fields]
        near = difflib.get_close_matches(key, names, n=1, cutoff=SAME_WORD)
        if near:
            return f"Did you mean '{near[0]}'?"
        meant = f", as {system.foreign[key]}" if key in system.foreign else ""
        return (
            f"Options of {system.submitter} belong below a line [{system.submitter}]{meant}. "
            f"The other keys are {', '.join(names)}."
        )


def file_model(system: BatchSystem) -> type[SettingsFile]:
    """Return the contents of the settings file of a batch system, which adds its options and launcher settings."""
    fields: dict[str, Any] = {system.submitter: (dict[str, str | int | bool], Field(default_factory=dict))}
    fields |= {name: (str | None, None) for name in system.launcher_settings}
    model = create_model(f"{system.title}File", __base__=SettingsFile, **fields)
    model.system = system
    return model


def batch_settings(
    system: BatchSystem,
    path: Path | None,
    assignments: Iterable[str],
    environ: Mapping[str, str] = os.environ,
    *,
    image: str | None = None,
    image_options: Iterable[str] = (),
) -> BatchSettings:
    """Return the settings for a batch system from the environment, a file and the command line.

    Args:
        system: the batch system.
        path: a settings file; None for that in the current folder, if there is one.
        assignments: the values of the system's option, such as --slurm, as KEY=VALUE or the name of a flag.
        environ: the environment, which may have options of the system.
        image: the value of --image; None if the option is not used.
        image_options: the values of --image-option.

    Raises:
        RequestError: if the file or one of the assignments is malformed.
    """
    flag = system.flag
    launcher = {name: values[0] for name, values in system.launcher_settings.items()}
    settings = BatchSettings(system=system, image=Image(path=""), launcher=launcher)
    for name, value, variable in system.options_in(environ):
        settings = with_option(settings, name, value, variable)
    model = file_model(system)
    values = read_toml(path, model) if path else read_current_folder_toml(system.settings_file, model, f"{flag}-file")
    if values is not None:
        settings = with_file(settings, values, path or system.settings_file)
    for assignment in assignments:
        name, equals, option_value = assignment.partition("=")
        if name in (*TEXT_SETTINGS, *launcher):
            settings = with_texts(settings, {name: option_value})
        elif name == SETUP:
            settings = replace(settings, setup=(*settings.setup, option_value))
        elif name == MAX_REQUEUES:
            settings = replace(settings, max_requeues=requeue_limit(system, option_value))
        elif equals or dict(system.long_options(name, "")).keys() <= {*system.flags}:
            settings = with_option(settings, name, option_value, COMMAND_LINE)
        else:
            raise RequestError(
                f"{flag} {assignment}: expected KEY=VALUE.", hint=f"Example: {flag} {system.example_option}"
            )
    for option in image_options:
        settings = with_image_option(settings, option)
    settings = with_image(settings, image)
    if settings.image is None:
        check_no_image_options(tuple(image_options))
    return settings


def with_image(settings: BatchSettings, image: str | None) -> BatchSettings:
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


def with_image_option(settings: BatchSettings, option: str) -> BatchSettings:
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


def with_file(settings: BatchSettings, values: SettingsFile, source: Path) -> BatchSettings:
    """Return the settings with the values of a file."""
    texts = {name: getattr(values, name) for name in (*TEXT_SETTINGS, *settings.launcher)}
    settings = with_texts(settings, {name: text for name, text in texts.items() if text is not None})
    settings = replace(settings, python=values.python, setup=tuple(values.setup), max_requeues=values.max_requeues)
    table = values.container.model_dump(exclude_none=True)
    path = table.pop("image", "")
    if path and not settings.login:
        path = os.path.join(source.parent, path)
    lists = {name: tuple(table[name]) for name in LISTS if name in table}
    settings = replace(settings, image=Image(path=path, **{**table, **lists}))
    for name, value in getattr(values, settings.system.submitter).items():
        if value is not False:
            text = "" if value is True else str(value)
            settings = with_option(settings, name, text, str(source))
    return settings


def requeue_limit(system: BatchSystem, text: str) -> int:
    """Return the limit on requeues, given as text.

    Raises:
        RequestError: if the text is not a number.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(
            f"{system.flag} {MAX_REQUEUES}={text}: expected a number.", hint=f"Example: {system.flag} {MAX_REQUEUES}=10"
        )
    return int(text)


def with_option(settings: BatchSettings, name: str, value: str, source: str) -> BatchSettings:
    """Return the settings with one option of the job; `exclusive=yes` is the same as `exclusive`, and `p` as partition.

    Raises:
        RequestError: if the option cannot be used.
    """
    for long_name, text in settings.system.long_options(name, value):
        key = long_name.replace("_", "-")
        text = "" if key in settings.system.flags and text in ("yes", "true", "1") else text
        options, sources = {**settings.options, key: text}, {**settings.sources, key: source}
        settings = replace(settings, options=options, sources=sources)
    return settings


def with_texts(settings: BatchSettings, texts: dict[str, str]) -> BatchSettings:
    """Return the settings with these texts replaced; an empty text resets a setting to None."""
    return replace(
        settings,
        root=texts.get("root", settings.root) or None,
        python=None if texts.get("root") else settings.python,  # that of a settings file
        login=texts.get("login", settings.login) or None,
        runs=texts.get("runs", settings.runs) or None,
        launcher={name: texts.get(name, value) for name, value in settings.launcher.items()},
        allocation=texts.get("allocation", settings.allocation),
    )
