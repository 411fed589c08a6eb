"""A recipe: a training script with its arguments and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.packages import Packages
from orchestrator.model.project import Project
from orchestrator.model.setting_types import DESCRIPTIONS, TEXT, matches, type_of

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training script with its default arguments; the user's own script has defaults for all other fields.

    Attributes:
        arguments: the default settings.
        accepts: further names that --set accepts.
        types: the types of settings whose default does not reveal them.
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
    arguments: Mapping[str, Value] = field(default_factory=dict)
    accepts: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
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
    def module_folders(self) -> tuple[str, ...]:
        """Return the folders of the user's modules on this machine."""
        return tuple(filter(None, [self.source_folder, self.packages.folder if self.packages else ""]))

    @property
    def script_file(self) -> str:
        """Return the path of the script; empty for a module, which has no local file."""
        return "" if self.module else self.script

    def program(self, paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return what Python runs.

        Args:
            paths: where the ranks find each local file.
        """
        return ("-m", self.script) if self.module else (paths[self.script],)

    def sent_path(self, path: str, number: int) -> str:
        """Return the path of a local file below a folder of the run.

        The files of a plug-in recipe keep their relative paths; each other file gets a folder named by its number.
        """
        if path in self.files:
            return f"recipe/{PurePosixPath(path).relative_to(self.folder)}"
        return f"{number}/{PurePosixPath(path).name}"

    def settings(self, preset: str | None, user_values: Mapping[str, Value]) -> dict[str, Value]:
        """Merge the defaults, the preset and the user's values.

        Raises:
            RequestError: if the preset or a setting is unknown.
        """
        if preset is not None and preset not in self.presets:
            raise RequestError(
                f"Recipe '{self.name}' has no preset '{preset}'.", hint=did_you_mean(preset, self.presets)
            )
        self.check_names(user_values)
        result = dict(self.arguments)
        for layer in (self.presets[preset] if preset else {}, user_values):
            for name in layer:
                for dropped in self.excludes.get(name, ()):
                    result.pop(dropped, None)
            result |= layer
        return result

    def check_names(self, user_values: Mapping[str, Value]) -> None:
        """Raise RequestError for the first name that the recipe does not know."""
        if self.own_script and user_values:
            raise RequestError(
                f"--set applies to recipes only; {self.script} is your own script.",
                hint="Pass the script's arguments after --.",
            )
        settings = {*self.arguments, *self.accepts}
        for name in user_values:
            if name not in settings:
                raise RequestError(
                    f"Recipe '{self.name}' has no setting '{name}'.",
                    hint=f"{did_you_mean(name, settings)} Other arguments of the script go after --.",
                )

    def type_of(self, name: str) -> str:
        if name in self.types:
            return self.types[name]
        return type_of(self.arguments[name]) if name in self.arguments else TEXT

    def check_types(self, user_values: Mapping[str, Value]) -> None:
        """Raise RequestError for the first value that its setting cannot have."""
        for name, value in user_values.items():
            kind = self.type_of(name)
            if not matches(value, kind):
                default = f" Its default is {self.arguments[name]}." if name in self.arguments else ""
                raise RequestError(
                    f"--set {name}={value}: not {DESCRIPTIONS[kind]}.",
                    hint=f"Recipe '{self.name}' expects {DESCRIPTIONS[kind]}.{default}",
                )


def as_arguments(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Return settings as `--name=value`; True becomes the flag alone.

    False is passed explicitly because the script's own default may be True.
    """
    arguments: list[str] = []
    for name, value in settings.items():
        if value is True:
            arguments.append(f"--{name}")
        else:
            # A value that starts with a dash needs the form --name=value.
            arguments.append(f"--{name}={'false' if value is False else value}")
    return tuple(arguments)
