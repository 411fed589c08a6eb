"""Read the settings of pip on this machine that a case uses: its package index, and whether it compiles bytecode."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.fresh.cases import CPU_INDEX, Case

SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "compile")
IN_CONTAINER = "/etc/ssl/certs/ca-certificates.crt"


def index_arguments(case: Case) -> list[str]:
    """Return arguments for `docker run` with pip's settings; for the default build, PyTorch's index is unreachable.

    The environment takes precedence over files. An index on this disk is skipped. Without pip there are no settings.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    settings: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = ast.literal_eval(value)
    urls = settings.get("extra-index-url", "").split()
    settings["extra-index-url"] = " ".join(url for url in urls if not url.startswith("file:"))
    wheels = [folder for folder in settings.get("find-links", "").split() if folder.startswith("/")]
    arguments = []
    if "cert" in settings:
        arguments += ["--volume", f"{settings['cert']}:{IN_CONTAINER}:ro"]
        settings["cert"] = IN_CONTAINER
    for name in SETTINGS:
        if settings.get(name):
            arguments += ["--env", f"PIP_{name.upper().replace('-', '_')}={settings[name]}"]
    if case.build == "default":
        return [*arguments, "--add-host", f"{CPU_INDEX}:127.0.0.1"]
    arguments += [f"--volume={folder}:/wheels/{number}:ro" for number, folder in enumerate(wheels)]
    return [*arguments, f"--env=PIP_FIND_LINKS={' '.join(f'/wheels/{n}' for n in range(len(wheels)))}"]
