"""The calls of `pip download` that fetch a stack's wheels, and explanations of their failures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import ExecuteError
from orchestrator.stacks.matrix import alternatives, builds_bindings, index_for
from orchestrator.stacks.stack import BINDINGS, TORCH, Index, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSources:
    """The user's sources of wheels, which replace the stack's indexes and extend pip's configuration."""

    find_links: tuple[str, ...] = ()
    index_url: str | None = None

    def arguments(self) -> tuple[str, ...]:
        """Return pip's options for these sources."""
        links = tuple(f"--find-links={link}" for link in self.find_links)
        return (*links, f"--index-url={self.index_url}") if self.index_url else links


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A call of `pip download`."""

    packages: tuple[str, ...]  # NAME==VERSION; empty for those of the stack's lock
    index: Index | None  # the stack's index that serves them
    arguments: tuple[str, ...]

    def describe(self) -> str:
        """Return the packages as text."""
        return ", ".join(self.packages) or "the packages of its lock"


def plan_downloads(
    stack: Stack,
    folder: str,
    *,
    sources: WheelSources,
    python: str | None,
    any_torch: bool = False,
    locked: tuple[str, ...] = (),
    constraints: tuple[str, ...] = (),
) -> tuple[Download, ...]:
    """Return the downloads that fetch a stack's wheels into a folder.

    Packages that only the stack's own indexes serve come first and one by one: a failure names the package, and
    happens before gigabytes are fetched. All others follow with their dependencies.

    Args:
        stack: the stack to fetch.
        folder: where pip writes the wheels.
        sources: the user's sources of wheels.
        python: version of Python to fetch for, None for the one that runs pip.
        any_torch: whether the CUDA build of torch will do.
        locked: pip's options that fetch the packages of the stack's lock by their hashes.
        constraints: pip's options that restrict all others to the versions in the lock.
    """
    target: tuple[str, ...] = ("--dest", folder, f"--find-links={folder}")
    if python:
        target += ("--only-binary=:all:", f"--python-version={python}")
    downloads = []
    for package in special_packages(stack, any_torch=any_torch):
        index = index_for(stack, package)
        source = sources.arguments() or ((f"--{index.option}={index.url}",) if index else ())
        packages = (requirement(stack, package, any_torch=any_torch),)
        downloads.append(Download(packages=packages, index=index, arguments=("--no-deps", *target, *source)))
    without_dependencies = tuple(f"{name}=={stack.requirements[name]}" for name in stack.without_dependencies)
    with_dependencies = tuple(
        requirement(stack, name, any_torch=any_torch)
        for name in stack.requirements
        if name not in stack.without_dependencies
    )
    # Without the stack's indexes: what only they serve is in the folder by now, and pip retries an unreachable
    # index five times for each package.
    arguments = (*target, *sources.arguments())
    if locked:
        downloads.append(Download(packages=(), index=None, arguments=(*arguments, *locked)))
    arguments += constraints
    downloads.append(Download(packages=with_dependencies, index=None, arguments=arguments))
    if without_dependencies:
        downloads.append(Download(packages=without_dependencies, index=None, arguments=("--no-deps", *arguments)))
    return tuple(downloads)


def special_packages(stack: Stack, *, any_torch: bool) -> list[str]:
    """Return the packages that are not on pip's default index; torch, the largest, comes last."""
    names = [name for index in stack.indexes if index.only_there for name in index.serves]
    if builds_bindings(stack):
        names.append(BINDINGS)
    if index_for(stack, TORCH) and not any_torch:
        names.append(TORCH)
    return [name for name in names if name in stack.requirements]


def requirement(stack: Stack, package: str, *, any_torch: bool) -> str:
    """Return NAME==VERSION; torch as +cpu, so that pip never selects the CUDA build."""
    version = stack.requirements[package]
    cpu = package == TORCH and index_for(stack, TORCH) and not any_torch and "+" not in version
    return f"{package}=={version}+cpu" if cpu else f"{package}=={version}"


# pip's log line for each page that it could not fetch and continued without.
SKIPPED_PAGE = re.compile(r"Could not fetch URL (\S+): (.*?)(?: - skipping)?$", re.MULTILINE)
NO_DISTRIBUTION = re.compile(r"No matching distribution found for (\S+)")


def explain_failure(stack: Stack, download: Download, log: str, stacks: Sequence[Stack]) -> ExecuteError:
    """Return the error for a wheel that pip could not find, with the place and what to do, from pip's log."""
    missing = NO_DISTRIBUTION.search(log)
    wheel = missing.group(1) if missing else download.describe()
    package = wheel.partition("==")[0].lower().replace("_", "-")
    index = download.index or index_for(stack, package)
    return ExecuteError(
        f"Stack '{stack.name}' requires {wheel}, which could not be downloaded: "
        f"{failure_reason(log, index, missing is not None)}",
        hint=failure_hint(stack, package, stacks),
    )


def failure_reason(log: str, index: Index | None, missing: bool) -> str:
    """Return why pip failed: an unreachable index, a missing package, or pip's last error."""
    if page := unreachable_page(log, index):
        return f"{page[0]} cannot be reached: {page[1].removeprefix('connection error: ')}."
    if missing:
        return "no index that pip searched has it."
    errors = [line.partition("ERROR: ")[2] for line in log.splitlines() if "ERROR: " in line]
    return errors[-1] if errors else "pip gave no reason."


def unreachable_page(log: str, index: Index | None) -> tuple[str, str] | None:
    """Return the page that pip skipped, preferably one of the index, and the reason."""
    # A page that is not found belongs to an index that merely lacks the package.
    skipped = [(url, reason) for url, reason in SKIPPED_PAGE.findall(log) if "404 Client Error" not in reason]
    for url, reason in skipped:
        if index and url.startswith(index.url):
            return f"{index.name} ({index.url})", reason
    return skipped[0] if skipped else None


def failure_hint(stack: Stack, package: str, stacks: Sequence[Stack]) -> str:
    """Return what the user can do who cannot download this package."""
    if package == BINDINGS and builds_bindings(stack):
        return (
            "These bindings are built from source: `pip wheel ./bindings --no-deps --wheel-dir DIR` in a checkout, "
            "with the folder of --to as DIR; then fetch again."
        )
    advice = "; ".join(alternatives(stack, package, stacks))
    if package == TORCH:
        return f"PyPI's torch is the CUDA build of several GB: --any-torch takes it; {advice}."
    return f"Alternatives: {advice}."
