"""A recipe: what to train, as script, arguments and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.setting_types import TEXT, WANTED, fits, type_of

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`arguments` are defaults; `accepts` the further names that --set knows; `types` what a name
    takes, where its default does not tell.

    `excludes`: a name that is set -> names whose defaults it drops. `paths`: names whose values
    are files of the controller when they exist there. `resumes`: the script continues from its
    newest checkpoint in --output_dir. `ipex`: it takes --use_ipex. `environment`: variables of its
    ranks that nobody else has set. An own script of the user's has none of all this. `files` is
    what lies in a plug-in recipe's `folder`, and has to be with its script wherever that runs.
    """

    name: str
    script: str
    summary: str = ""
    own_script: bool = False
    module: bool = False  # `script` is the name of a module, which the ranks find
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

    @property
    def script_file(self) -> str:
        """Return the path of the script; empty for a module, which has no file here."""
        return "" if self.module else self.script

    def program(self, paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return what Python runs. `paths`: file of this machine -> where the ranks find it."""
        return ("-m", self.script) if self.module else (paths[self.script],)

    def place_of(self, path: str, number: int) -> str:
        """Where a file of this machine is put below a folder of a run's: the files of a plug-in
        recipe stay as they are to each other, others have a folder each by their number."""
        if path in self.files:
            return f"recipe/{PurePosixPath(path).relative_to(self.folder)}"
        return f"{number}/{PurePosixPath(path).name}"

    def settings(self, preset: str | None, chosen: Mapping[str, Value]) -> dict[str, Value]:
        """Defaults, then the preset, then what was chosen. Raises RequestError."""
        if preset is not None and preset not in self.presets:
            raise RequestError(
                f"Recipe '{self.name}' has no preset '{preset}'.", hint=did_you_mean(preset, self.presets)
            )
        self.check_names(chosen)
        layers = (self.presets[preset] if preset else {}, chosen)
        result = dict(self.arguments)
        for layer in layers:
            for name in layer:
                for dropped in self.excludes.get(name, ()):
                    result.pop(dropped, None)
            result |= layer
        return result

    def check_names(self, chosen: Mapping[str, Value]) -> None:
        """Raises RequestError for the first name that the recipe does not know."""
        if self.own_script and chosen:
            raise RequestError(
                f"--set is for recipes; {self.script} is a script of its own.",
                hint="Give its arguments after --, as you would by hand.",
            )
        known = {*self.arguments, *self.accepts}
        for name in chosen:
            if name not in known:
                raise RequestError(
                    f"Recipe '{self.name}' knows no setting '{name}'.",
                    hint=f"{did_you_mean(name, known)} Arguments that only the script knows go after --.",
                )

    def type_of(self, name: str) -> str:
        if name in self.types:
            return self.types[name]
        return type_of(self.arguments[name]) if name in self.arguments else TEXT

    def check_types(self, chosen: Mapping[str, Value]) -> None:
        """Raises RequestError for the first value that its setting cannot have."""
        for name, value in chosen.items():
            kind = self.type_of(name)
            if not fits(value, kind):
                default = f" Its default is {self.arguments[name]}." if name in self.arguments else ""
                raise RequestError(
                    f"--set {name}={value}: it is not {WANTED[kind]}.",
                    hint=f"Recipe '{self.name}' takes {WANTED[kind]} for it.{default}",
                )


def as_arguments(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Settings as `--name=value`; True is the flag alone.

    False is said, not left out: a script's own default may be True.
    """
    arguments: list[str] = []
    for name, value in settings.items():
        if value is True:
            arguments.append(f"--{name}")
        else:
            # One token, so that a value that starts with a dash stays a value.
            arguments.append(f"--{name}={'false' if value is False else value}")
    return tuple(arguments)
