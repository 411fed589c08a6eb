"""How orch calls uv: for the Python and platform of the nodes, with the indexes that pip or uv is configured to use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from orchestrator.errors import ExecuteError, PlanError, RequestError
from orchestrator.load.requirements import NO_PACKAGES
from orchestrator.model.packages import Platform
from orchestrator.model.printable import one_line

GLIBC_MINORS = (17, 28, *range(31, 41))  # uv's names of platforms
NO_SOLUTION = 1  # uv's exit code
LONGEST_REASON = 600  # characters of uv's message
# Of pip's settings, those that take precedence last. Which pip lists last depends on its version.
PIP_SECTIONS = ("global", "install", ":env:")
# The settings of pip that name indexes, the variables with which uv reads the same, and how they separate values.
INDEX_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "cert": ("SSL_CERT_FILE", " "),
}
UV_SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")


def platform_options(platform: Platform) -> list[str]:
    """Return uv's options that select packages for a platform."""
    return ["--python-version", platform.python, "--python-platform", uv_platform(platform)]


def uv_platform(platform: Platform) -> str:
    """Return uv's name of a platform.

    Raises:
        PlanError: if its glibc is too old.
    """
    minor = Version(platform.libc).minor
    if minor < GLIBC_MINORS[0]:
        raise PlanError(f"Packages cannot be added on glibc {platform.libc}.", hint=NO_PACKAGES)
    name = max(number for number in GLIBC_MINORS if number <= minor)
    return f"{platform.machine}-manylinux_2_{name}"


def run_uv(
    *arguments: str, folder: Path, problem: str, find_links: str = "", explain: Callable[[str], str] = lambda reason: ""
) -> None:
    """Run uv in a folder, with the indexes that pip or uv is configured to use.

    Args:
        arguments: those of uv.
        folder: the working directory.
        problem: the beginning of the message of an error.
        find_links: folders with further wheels, separated by commas.
        explain: returns a sentence to add to uv's message.

    Raises:
        RequestError: if the requirements contradict each other.
        ExecuteError: for another error; both with uv's message.
    """
    variables, options = index_settings()
    environment = {**os.environ, **variables}
    environment["UV_FIND_LINKS"] = ",".join(filter(None, [find_links, environment.get("UV_FIND_LINKS")]))
    if not environment["UV_FIND_LINKS"]:
        del environment["UV_FIND_LINKS"]
    # -I: `python -m uv` would import a uv.py of the current folder.
    command = [sys.executable, "-I", "-m", "uv", *arguments, *options, "--no-python-downloads", "--color", "never"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, check=False
    )
    if not done.returncode:
        return
    message = done.stderr.partition("error: ")[2] or done.stderr
    parts = re.split(r"^\s*cause: ", message, flags=re.MULTILINE)
    reason = shortened(": ".join(one_line(" ".join(part.split())) for part in parts))
    raise (RequestError if done.returncode == NO_SOLUTION else ExecuteError)(
        f"{problem}. {reason.removesuffix('.')}.{explain(reason)}",
        hint=f"Change the requirements, or choose another --stack. Indexes are those of pip (`pip config list`) or "
        f"uv. {NO_PACKAGES}",
    )


def shortened(reason: str) -> str:
    """Return uv's message; of a long one, only why the newest version of a package does not fit.

    uv explains each version that it has tried, which can be thousands.
    """
    conflicts = re.findall(r"ecause (\S+ depends on [^()]*?) and (\S+==\S+), we can conclude", reason)
    required = re.findall(r"(you require .*?), we can conclude that your requirements", reason)
    if len(reason) <= LONGEST_REASON:
        return reason
    if not conflicts or not required:
        return f"{reason[: LONGEST_REASON // 2]} [...] {reason[-LONGEST_REASON // 2 :]}"
    dependency, pin = conflicts[-1]
    return f"No version fits. For the newest one: {dependency}, but {pin}; {required[-1]}"


def index_settings() -> tuple[dict[str, str], list[str]]:
    """Return the variables and options that make uv use pip's indexes; none if uv has settings.

    They are variables because all users can read arguments, and URLs may contain passwords.
    """
    files = (Path("~/.config/uv/uv.toml").expanduser(), Path("/etc/uv/uv.toml"))
    if any(name in os.environ for name in UV_SETTINGS) or any(file.exists() for file in files):
        return {}, []
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False).stdout
    values: dict[str, list[str]] = {}
    for section in PIP_SECTIONS:
        for line in listed.splitlines():
            name, _, value = line.partition("=")
            key = name.removeprefix(f"{section}.")
            if key != name and key in (*INDEX_SETTINGS, "no-index"):
                values[key] = value.strip("'\"").replace("\\n", " ").split()
    links = values.get("find-links", [])  # uv starts in another folder
    links[:] = [str(Path(link).absolute()) if Path(link).exists() else link for link in links]
    no_index = values.pop("no-index", ["false"])[0].lower() in ("1", "true", "yes", "on")
    variables = {INDEX_SETTINGS[key][0]: INDEX_SETTINGS[key][1].join(items) for key, items in values.items()}
    # pip takes the best version of all indexes.
    return {**variables, "UV_INDEX_STRATEGY": "unsafe-best-match"}, ["--no-index"] if no_index else []
