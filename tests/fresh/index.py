"""Read the settings of pip on this machine that a case uses: its package index, and whether it compiles bytecode."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from tests.fresh.cases import CPU_INDEX, Case

SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "compile")
IN_CONTAINER = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The package index of this machine."""

    settings: dict[str, str]  # pip's settings by name
    wheels: tuple[str, ...] = ()  # folders in which pip searches for wheels

    def arguments(self, case: Case) -> list[str]:
        """Return arguments for `docker run`; for the default build, PyTorch's index is unreachable."""
        arguments = []
        for name, value in self.settings.items():
            if name == "cert":
                arguments += ["--volume", f"{value}:{IN_CONTAINER}:ro"]
                value = IN_CONTAINER
            arguments += ["--env", f"PIP_{name.upper().replace('-', '_')}={value}"]
        if case.build == "default":
            return [*arguments, "--add-host", f"{CPU_INDEX}:127.0.0.1"]
        for number, folder in enumerate(self.wheels):
            arguments += ["--volume", f"{folder}:/wheels/{number}:ro"]
        folders = " ".join(f"/wheels/{number}" for number in range(len(self.wheels)))
        return [*arguments, "--env", f"PIP_FIND_LINKS={folders}"] if folders else arguments


def index_of(lines: Iterable[str]) -> Index:
    """Return the index from lines of `pip config list`.

    The environment takes precedence over files. An index on this disk is skipped.
    """
    configuration: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        configuration[key.rpartition(".")[2]] = ast.literal_eval(value)
    extra = [url for url in configuration.get("extra-index-url", "").split() if not url.startswith("file:")]
    configuration["extra-index-url"] = " ".join(extra)
    folders = [folder for folder in configuration.get("find-links", "").split() if folder.startswith("/")]
    settings = {name: configuration[name] for name in SETTINGS if configuration.get(name)}
    return Index(settings=settings, wheels=tuple(folders))
