"""Resolve the user's packages with uv so that they fit the stack, and install them into a folder of the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from orch_node import content_store
from orch_node.content_store import UNUSED_SECONDS
from orch_node.protocol.node_names import fold_by_text
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from orchestrator.errors import ExecuteError, OrchError, PlanError, RequestError
from orchestrator.files import cache_home, exclusive, private_folder, write_whole
from orchestrator.load.requirements import FIND_LINKS, NO_PACKAGES, parse_requirement
from orchestrator.model.facts import Facts
from orchestrator.model.packages import Packages, Platform, Requirements, describe_versions
from orchestrator.model.printable import masked, one_line

PROGRESS = logging.getLogger(__name__)
FORMAT = 1  # part of the keys of the cache
PYTHON = "python_full_version"  # the name of a marker
# In the folder of a lock: the installed packages, and the hash of their content.
SITE, DIGEST = "packages", "digest"
HASH = re.compile(r"--hash=(\w+:[0-9a-f]+)")
COMMIT = re.compile(r"@ git\+\S+@[0-9a-f]{40}\b")  # the URL of a package whose commit stands for the hashes of files


def packages_for(requirements: Requirements, nodes: Sequence[Facts], stack: str) -> Packages | None:
    """Return the packages to add to the stack on nodes; None if the stack has all required packages.

    Args:
        requirements: of the run.
        nodes: the facts of the nodes with the stack.
        stack: what messages call it, such as `stack 'current'`.

    Raises:
        PlanError: if nodes differ in their platform.
        RequestError: if the requirements do not fit the stack or the nodes' Python.
        ExecuteError: if the packages cannot be downloaded or installed.
    """
    if not nodes:
        return None
    facts, installed = nodes[0], pins(nodes[0].packages)
    if all_met(requirements, installed, {**platform_of(facts).markers, PYTHON: facts.python}, stack):
        return None
    platform = common_platform(nodes)
    lock = resolve(requirements, installed, platform, stack)
    if not lock:
        return None
    versions = {requirement.name: version_of(requirement) for requirement, _ in parse_lock(lock)}
    folder = cache() / hashlib.sha256(json.dumps([FORMAT, platform.key, lock]).encode()).hexdigest()[:16]
    with exclusive(private_folder(cache()) / f".{folder.name[:12]}.lock"):
        if not folder.exists():
            PROGRESS.info("packages: downloading and installing %s (once)", describe_versions(versions))
            install(folder, requirements, lock, platform)
    (folder / DIGEST).touch()  # `orch clean` deletes folders that have not been used for long
    digest = (folder / DIGEST).read_text()
    return Packages(source=requirements.source, digest=digest, folder=str(folder / SITE), versions=versions)


def lock_packages(
    requirements: Requirements, installed: Mapping[str, str], platform: Platform, stack: str, *, wheels: str = ""
) -> str:
    """Return the lines of a requirements file with hashes for the packages that a stack lacks; empty for none.

    Args:
        requirements: the packages that are required.
        installed: the version of each package of the stack.
        platform: the platform to install them on.
        stack: the name of the stack.
        wheels: a folder with the stack's wheels, for indexes that do not have them.

    Raises:
        RequestError: if the requirements do not fit the stack or the Python.
        ExecuteError: if uv cannot resolve them.
    """
    name, installed = f"stack '{stack}'", pins(installed)
    if all_met(requirements, installed, platform.markers, name):
        return ""
    lock = resolve(requirements, installed, platform, name, wheels)
    if COMMIT.search(lock):
        raise RequestError.about("git-packages-of-stack", requirements=requirements)
    return lock


def cache() -> Path:
    return cache_home() / "packages"


def remove_unused(*, dry_run: bool) -> tuple[str, ...]:
    """Remove the locks and the folders of packages on this machine that no run has used for 30 days.

    Args:
        dry_run: whether to keep them.

    Returns:
        The paths of the removed folders.
    """
    oldest = time.time() - UNUSED_SECONDS
    locks = [path for path in cache().glob("*.txt") if path.stat().st_mtime < oldest]
    folders = [path.parent for path in cache().glob(f"*/{DIGEST}") if path.stat().st_mtime < oldest]
    if not dry_run:
        for lock in locks:
            lock.unlink()
        for folder in folders:
            shutil.rmtree(folder)
    return tuple(map(str, folders))


def all_met(requirements: Requirements, installed: Mapping[str, str], markers: dict[str, str], stack: str) -> bool:
    """Return whether the stack has all packages that are required directly.

    Args:
        requirements: the packages that are required.
        installed: the version of each package of the stack.
        markers: the variables of environment markers.
        stack: what messages call the stack.

    Raises:
        RequestError: if the requirements are for other versions of Python, or if the stack has one of the packages in a
            version that does not fit, or lacks one that has a source of uv.
    """
    python = markers[PYTHON]
    if not SpecifierSet(requirements.python).contains(python, prereleases=True):
        raise RequestError.about("python-of-packages", requirements=requirements, python=python)
    satisfied = True
    for line in requirements.lines:
        requirement = parse_requirement(line)
        if requirement is None:
            satisfied = satisfied and line.startswith("-")
            continue
        if requirement.marker and not requirement.marker.evaluate(markers):
            continue
        version = installed.get(canonicalize_name(requirement.name))
        if version is None and (file := requirements.uv_sources.get(canonicalize_name(requirement.name))):
            raise RequestError.about("source-of-uv", file=file, requirement=requirement)
        if version is None or requirement.url or requirement.extras:
            satisfied = False
        elif not requirement.specifier.contains(version, prereleases=True):
            raise RequestError.about(
                "version-of-stack", requirements=requirements, requirement=requirement, stack=stack, version=version
            )
    return satisfied


def platform_of(facts: Facts) -> Platform:
    return Platform(python=".".join(facts.python.split(".")[:2]), machine=facts.machine, libc=facts.libc)


def common_platform(nodes: Sequence[Facts]) -> Platform:
    """Return the platform whose wheels run on all nodes: that with the oldest glibc.

    Raises:
        PlanError: if they have different versions of Python or machines, or if these are not known.
    """
    platforms = [platform_of(facts) for facts in nodes]
    if incomplete := [facts for facts in nodes if not (facts.machine and facts.libc)]:
        raise PlanError.about("unknown-c-library", host=incomplete[0].hostname)
    if len({(platform.python, platform.machine) for platform in platforms}) > 1:
        kinds = {facts.hostname: f"Python {platform_of(facts).python} on {facts.machine}" for facts in nodes}
        names = ", ".join(f"{kind} ({hosts})" for hosts, kind in fold_by_text(kinds))
        raise PlanError.about("unequal-platforms", names=names)
    return min(platforms, key=lambda platform: Version(platform.libc))


def resolve(
    requirements: Requirements, installed: Mapping[str, str], platform: Platform, stack: str, wheels: str = ""
) -> str:
    """Return the lock: the packages that the stack lacks with exact versions and hashes, one in each line.

    Raises:
        RequestError: if they do not fit the stack.
        ExecuteError: if uv cannot resolve them.
    """
    content = [FORMAT, asdict(requirements), local_wheels(requirements.lines), installed, platform.key]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = private_folder(cache()) / f"{key}.txt"
    if path.exists():
        path.touch()
        return path.read_text()
    PROGRESS.info("packages: resolving those of %s (once)", requirements.source)
    with tempfile.TemporaryDirectory(prefix="orch-packages-") as name:
        folder = Path(name)
        write_lines(folder / "requirements.in", requirements.lines)
        stack_lines = [f"{package}=={version}" for package, version in installed.items()]
        write_lines(folder / "stack.txt", [*stack_lines, *requirements.constraints])
        write_lines(folder / "lock.txt", requirements.preferred)
        run_uv(
            *("pip", "compile", "requirements.in", "--constraints", "stack.txt", "--output-file", "lock.txt"),
            *("--generate-hashes", "--no-header", "--no-annotate", *platform_options(platform)),
            *(option for package in installed for option in ("--no-emit-package", package)),
            folder=folder,
            find_links=",".join(filter(None, [make_placeholders(folder / "wheels", installed, platform), wheels])),
            problem=f"The packages of {requirements.source} cannot be added to {stack}",
        )
        lock = with_user_hashes((folder / "lock.txt").read_text(), requirements)
    write_whole(path, lock)
    return lock


def local_wheels(lines: Sequence[str]) -> list[tuple[str, int]]:
    """Return the files in the folders of --find-links, with their times: a wheel may be built again under its name."""
    folders = [links[1] for line in lines if (links := FIND_LINKS.fullmatch(line))]
    return sorted((str(path), path.stat().st_mtime_ns) for folder in folders for path in Path(folder).glob("*"))


def pins(packages: Mapping[str, str]) -> dict[str, str]:
    """Return the packages whose names and versions are valid; those of nodes are input."""
    valid: dict[str, str] = {}
    for name, version in packages.items():
        with contextlib.suppress(ValueError):
            valid[canonicalize_name(name, validate=True)] = str(Version(version))
    return valid


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def make_placeholders(folder: Path, installed: Mapping[str, str], platform: Platform) -> str:
    """Create wheels without content for versions that indexes do not have, such as torch 2.13.0+cpu; return the folder.

    They require nothing, so that uv does not add the CUDA packages that torch requires on PyPI.
    """
    folder.mkdir()
    # The most specific tag: uv prefers it to a wheel of an index, which it would download for its hash.
    python = f"cp{platform.python.replace('.', '')}"
    tag = f"{python}-{python}-{uv_platform(platform).partition('-')[2]}_{platform.machine}"
    for name, version in installed.items():
        if name != "torch" and not Version(version).local:
            continue
        stem = f"{name.replace('-', '_')}-{version}"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return str(folder)


def with_user_hashes(lock: str, requirements: Requirements) -> str:
    """Return the lock with only those hashes that the user's file allows, for the packages for which it has some.

    Raises:
        RequestError: if it allows none of a package's files.
    """
    allowed = {
        canonicalize_name(requirement.name): set(HASH.findall(line))
        for line in requirements.lines
        if HASH.search(line) and (requirement := parse_requirement(line))
    }
    blocks = []
    for requirement, hashes in parse_lock(lock):
        user_hashes = allowed.get(canonicalize_name(requirement.name), set(hashes))
        is_commit = not user_hashes and COMMIT.search(str(requirement))
        if not is_commit and not user_hashes.intersection(hashes):
            raise RequestError.about(
                "hashes-of-package", requirements=requirements, package=masked([str(requirement)])[0]
            )
        accepted = [f"--hash={item}" for item in hashes if item in user_hashes]
        blocks.append(" ".join([str(requirement), *accepted]) + "\n")
    return "".join(blocks)


def parse_lock(lock: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Yield the packages in the output of uv, each with the hashes of its files, such as sha256:HEXADECIMAL."""
    for block in re.split(r"\n(?=\S)", lock.strip()):
        if block and not block.startswith("#"):
            yield Requirement(re.split(r"\s+(?:\\|--hash)", block)[0]), HASH.findall(block)


def version_of(requirement: Requirement) -> str:
    """Return the version of a pinned package, or the name of the file at its URL."""
    return requirement.url.rpartition("/")[2] if requirement.url else str(requirement.specifier).removeprefix("==")


def install(folder: Path, requirements: Requirements, lock: str, platform: Platform) -> None:
    """Install the packages of a lock into a new folder, which appears when it is complete.

    Raises:
        ExecuteError: if a package cannot be downloaded, has another hash, or is not available for the platform.
    """
    with tempfile.TemporaryDirectory(prefix=f"{folder.name[:12]}.", dir=folder.parent) as name:
        work = Path(name)
        target = work / "new" / SITE
        indexes = [line for line in requirements.lines if line.startswith("-")]
        write_lines(work / "lock.txt", [*indexes, *lock.splitlines()])
        # Packages in git repositories have the hash of a commit, which --require-hashes does not accept.
        hashed = [] if COMMIT.search(lock) else ["--require-hashes"]
        options = ["--no-deps", "--link-mode", "copy", *hashed, *platform_options(platform)]
        command = ("pip", "install", "--target", str(target), *options, "--requirements", "lock.txt")
        problem = f"The packages of {requirements.source} cannot be installed"
        try:
            run_uv(*command, "--only-binary", ":all:", folder=work, problem=problem)
        except OrchError:  # a package has no wheel: uv builds those that are pure Python
            run_uv(*command, folder=work, problem=problem)
            check_built(target, platform, requirements)
        shutil.rmtree(target / "bin", ignore_errors=True)
        (target / ".lock").unlink(missing_ok=True)
        (target.parent / DIGEST).write_text(content_store.hash_of(target))
        target.parent.rename(folder)


def check_built(target: Path, platform: Platform, requirements: Requirements) -> None:
    """Raise ExecuteError for a package that was compiled on this machine, because the nodes may differ from it."""
    for path in sorted(target.glob("*.dist-info/WHEEL")):
        if f"-linux_{platform.machine}" in path.read_text():
            package = path.parent.name.removesuffix(".dist-info").replace("-", " ")
            raise ExecuteError.about("compiled-package", requirements=requirements, package=package, platform=platform)


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


def run_uv(*arguments: str, folder: Path, problem: str, find_links: str = "") -> None:
    """Run uv in a folder, with the indexes that pip or uv is configured to use.

    Args:
        arguments: those of uv.
        folder: the working directory.
        problem: the beginning of the message of an error.
        find_links: folders with further wheels, separated by commas.

    Raises:
        RequestError: if the requirements contradict each other.
        ExecuteError: for another error; both with uv's message.
    """
    variables, options = index_settings()
    env = {**os.environ, **variables}
    if links := ",".join(filter(None, [find_links, env.pop("UV_FIND_LINKS", "")])):
        env["UV_FIND_LINKS"] = links
    # -I: `python -m uv` would import a uv.py of the current folder.
    command = [sys.executable, "-I", "-m", "uv", *arguments, *options, "--no-python-downloads", "--color", "never"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env)
    if not done.returncode:
        return
    message = done.stderr.partition("error: ")[2] or done.stderr
    parts = re.split(r"^\s*cause: ", message, flags=re.MULTILINE)
    (reason,) = masked([": ".join(one_line(" ".join(part.split())) for part in parts)])
    if len(reason) > LONGEST_REASON:  # uv explains each version that it has tried
        reason = f"{reason[: LONGEST_REASON // 2]} [...] {reason[-LONGEST_REASON // 2 :]}"
    kind = RequestError if done.returncode == NO_SOLUTION else ExecuteError
    raise kind.about("uv-failed", problem=problem, reason=reason.removesuffix("."))


def index_settings() -> tuple[dict[str, str], list[str]]:
    """Return the variables and options that make uv use pip's indexes; none if uv has settings.

    They are variables because all users can read arguments, and URLs may contain passwords.
    """
    files = (Path("~/.config/uv/uv.toml").expanduser(), Path("/etc/uv/uv.toml"))
    if any(name in os.environ for name in UV_SETTINGS) or any(file.exists() for file in files):
        return {}, []
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
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
