"""A recipe: a training script with its arguments and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.packages import Packages
from orchestrator.model.project import Project

INTEGER, NUMBER, SWITCH, TEXT = "integer", "number", "switch", "text"
SET = "--set "  # precedes a value on the command line
FLAG = "flag"  # an option without a value
TYPES = {bool: SWITCH, int: INTEGER, float: NUMBER}  # of values in recipe.toml; others are text
DESCRIPTIONS = {INTEGER: "a whole number", NUMBER: "a number", SWITCH: "true or false", FLAG: "true or false"}
# The values of a switch are those that transformers' parser accepts.
SWITCH_VALUES = {SWITCH: ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0"), FLAG: ("true", "false")}
# Arguments of transformers and of orch's recipes that have a token of a model hub.
SECRETS = ("token", "hub_token", "push_to_hub_token")


def matches(value: object, kind: str) -> bool:
    """Return whether a value, as the user wrote it, has the type."""
    text = str(value)
    if kind in SWITCH_VALUES:
        return text.lower() in SWITCH_VALUES[kind]
    try:
        if kind == INTEGER:
            int(text)
        return kind != NUMBER or math.isfinite(float(text))
    except ValueError:
        return False


Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a recipe."""

    type: str = TEXT
    default: Value | None = None  # of the script; None if it has none or computes it
    description: str = ""
    needs_value: bool = False  # a switch that may be None: transformers' parser takes --name=true, but not --name
    choices: tuple[str, ...] = ()  # the only values; any of the type if empty
    negation: str = ""  # the name that sets a flag to false; without one, a flag is false if it is omitted

    @property
    def expected(self) -> str:
        """Return the values that it accepts, in messages."""
        return " or ".join(self.choices) or DESCRIPTIONS.get(self.type, "a text")

    def accepts(self, value: Value) -> bool:
        return str(value) in self.choices if self.choices else matches(value, self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training script with its default arguments; the user's own script has defaults for all other fields.

    Attributes:
        declared: the settings whose types are known, by name.
        has_parser: `declared` has all arguments that the script's parser knows.
        unchecked: why the script's other settings are not known; empty if `declared` has all.
        defaults: the values that the script gets unless a preset or the user changes them.
        paths: settings whose values are files of the controller if they exist there.
        excludes: for a setting, the names whose defaults it removes.
        resumes: the script continues from its newest checkpoint in --output_dir.
        elastic: the script keeps its global batch with fewer ranks.
        ipex: the script accepts --use_ipex.
        environment: variables of its ranks unless they are set elsewhere.
        folder: the folder of a plug-in recipe.
        files: the files in that folder, which are sent with the script.
        project: the files that are sent with the user's own script, or None for the script alone.
        source_folder: the folder `src` of the script's project, whose modules it imports; empty if there is none.
        packages: the packages to add to the stack, or None.
        image_requirements: what the ranks need from their image, with the file that requires it; empty for nothing.
    """

    name: str
    script: str
    summary: str = ""
    own_script: bool = False
    module: bool = False  # `script` is the name of a module that the ranks can import
    resumes: bool = False
    elastic: bool = False
    ipex: bool = False
    declared: Mapping[str, Setting] = field(default_factory=dict)
    unchecked: str = ""
    has_parser: bool = False
    defaults: Mapping[str, Value] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    precisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stacks: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    files: tuple[str, ...] = ()
    project: Project | None = None
    source_folder: str = ""
    packages: Packages | None = None
    image_requirements: str = ""

    @property
    def script_file(self) -> str:
        """Return the path of the script; empty for a module, which has no local file."""
        return "" if self.module else self.script

    @property
    def module_folders(self) -> tuple[str, ...]:
        """Return the folders of this machine with the user's modules, which ranks search after those of the stack."""
        return tuple(filter(None, (self.source_folder, self.packages.folder if self.packages else "")))

    def sent_path(self, path: str, number: int) -> str:
        """Return the path of a local file below a folder of the run.

        The files of a plug-in recipe keep their relative paths; each other file gets a folder named by its number.
        """
        if path in self.files:
            return f"recipe/{PurePosixPath(path).relative_to(self.folder)}"
        return f"{number}/{PurePosixPath(path).name}"

    def settings(self, preset: str | None, user_values: Mapping[str, Value]) -> dict[str, Value]:
        """Merge the defaults, the preset and the user's values, which check() has checked, into the script's arguments.

        A flag that is false is omitted, or its negation is true.

        Raises:
            RequestError: if the preset is unknown.
        """
        if preset is not None and preset not in self.presets:
            hint = did_you_mean(preset, self.presets) if self.presets else "Omit --preset; it has no presets."
            raise RequestError(f"Recipe '{self.name}' has no preset '{preset}'.", hint=hint)
        result = dict(self.defaults)
        for layer in (self.presets[preset] if preset else {}, user_values):
            for name in layer:
                for dropped in self.excludes.get(name, ()):
                    result.pop(dropped, None)
            result |= layer
        arguments: dict[str, Value] = {}
        for name, value in result.items():
            setting = self.declared.get(name, Setting())
            if setting.type != FLAG or value is not False:
                arguments[name] = "true" if value is True and setting.needs_value else value
            elif setting.negation:
                arguments[setting.negation] = True
        return arguments

    def check(self, user_values: Mapping[str, Value]) -> None:
        """Raise RequestError for the first value of --set that the recipe does not take."""
        if self.own_script and user_values:
            raise RequestError.about("settings-of-script", script=self.script)
        for name in user_values:
            if name in self.passed_by_orch:
                raise RequestError.about("setting-of-orch", name=name)
            if name in SECRETS:
                raise RequestError.about("secret-setting", name=name)
        self.check_values(user_values, SET)

    def check_values(self, values: Mapping[str, Value | None], source: str) -> None:
        """Raise RequestError for the first name that the recipe does not know, or value that it cannot have.

        Args:
            values: the values, or None for a name alone.
            source: where they are written, the beginning of the error's message.
        """
        for name, value in values.items():
            if name not in self.declared and not self.unchecked:
                hint = did_you_mean(name, self.declared, listing=self.listing)
                kind = "unknown-setting" if source == SET else "undeclared-setting"
                raise RequestError.about(kind, source=source, name=name, recipe=self, suggestion=hint)
            setting = self.declared.get(name, Setting())
            if value is not None and not setting.accepts(value):
                default = self.default(name) if source == SET else None
                hint = f"Its default is {default}." if default is not None else self.listing
                raise RequestError(f"{source}{name}={value}: not {setting.expected}.", hint=hint)

    def default(self, name: str) -> Value | None:
        """Return the default of a setting; None if it has none or the script computes it."""
        return self.defaults.get(name, self.declared[name].default)

    @property
    def listing(self) -> str:
        """Return how to list the settings."""
        return f"`orch recipes show {self.folder if self.files else self.name}` lists its settings."

    @property
    def passed_by_orch(self) -> set[str]:
        """Return the arguments that --set refuses because orch passes them itself."""
        flags = [flag for flags in self.precisions.values() for flag in flags if flag.startswith("--")]
        return {"output_dir", "use_ipex", *(flag[2:].partition("=")[0] for flag in flags)}


def as_arguments(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Return settings as `--name=value`; True becomes the flag alone.

    False is passed explicitly because the script's own default may be True.
    """
    # A value that starts with a dash needs the form --name=value.
    return tuple(
        f"--{name}" if value is True else f"--{name}={'false' if value is False else value}"
        for name, value in settings.items()
    )
