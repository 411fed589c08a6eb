"""The way to this machine's package index, and whether pip compiles all that it installs: the only
things that a case gets of its configuration."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from tests.fresh.cases import CPU_INDEX, Case

SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "compile")
IN_CONTAINER = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """`settings`: of pip, by name. `wheels`: folders in which pip looks for wheels here."""

    settings: dict[str, str]
    wheels: tuple[str, ...] = ()

    def arguments(self, case: Case) -> list[str]:
        """For `docker run`. The default build comes where PyTorch's index is out of reach."""
        words = []
        for name, value in self.settings.items():
            if name == "cert":
                words += ["--volume", f"{value}:{IN_CONTAINER}:ro"]
                value = IN_CONTAINER
            words += ["--env", f"PIP_{name.upper().replace('-', '_')}={value}"]
        if case.build == "default":
            return [*words, "--add-host", f"{CPU_INDEX}:127.0.0.1"]
        for number, folder in enumerate(self.wheels):
            words += ["--volume", f"{folder}:/wheels/{number}:ro"]
        found = " ".join(f"/wheels/{number}" for number in range(len(self.wheels)))
        return [*words, "--env", f"PIP_FIND_LINKS={found}"] if found else words


def index_of(lines: Iterable[str]) -> Index:
    """Out of `pip config list`. The environment beats files; what lies on this disk is no index."""
    found: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        found[key.rpartition(".")[2]] = ast.literal_eval(value)
    extra = [url for url in found.get("extra-index-url", "").split() if not url.startswith("file:")]
    found["extra-index-url"] = " ".join(extra)
    folders = [one for one in found.get("find-links", "").split() if one.startswith("/")]
    settings = {name: found[name] for name in SETTINGS if found.get(name)}
    return Index(settings=settings, wheels=tuple(folders))
