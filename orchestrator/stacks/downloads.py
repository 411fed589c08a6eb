"""How the wheels of a stack are had: pip's arguments, one download after the other. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.stacks.matrix import alternatives, index_of, own_bindings
from orchestrator.stacks.stack import BINDINGS, TORCH, Index, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where to look instead of the stack's own indexes, on top of pip's own configuration."""

    find_links: tuple[str, ...] = ()
    index_url: str | None = None

    def arguments(self) -> tuple[str, ...]:
        links = tuple(f"--find-links={link}" for link in self.find_links)
        return (*links, *((f"--index-url={self.index_url}",) if self.index_url else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One call of `pip download`. `wanted` names what the user loses if it fails."""

    wanted: tuple[str, ...]
    index: Index | None
    arguments: tuple[str, ...]


def plan_downloads(
    stack: Stack, folder: str, *, places: Places, python: str | None, any_torch: bool = False
) -> tuple[Download, ...]:
    """First what only a stack's own index serves, each alone, so that a failure names it and
    comes before gigabytes are fetched; then the rest with its dependencies.
    """
    target = ("--dest", folder, f"--find-links={folder}", *for_python(python))
    special = [
        Download(
            wanted=(requirement(stack, package, any_torch=any_torch),),
            index=index_of(stack, package),
            arguments=("--no-deps", *target, *only_place(stack, package, places)),
        )
        for package in special_packages(stack, any_torch=any_torch)
    ]
    alone = tuple(f"{name}=={stack.requirements[name]}" for name in stack.without_dependencies)
    rest = tuple(
        requirement(stack, name, any_torch=any_torch)
        for name in stack.requirements
        if name not in stack.without_dependencies
    )
    # No index of the stack here: what they alone serve is in the folder by now, and pip would ask
    # an index that is out of reach five times for each package.
    rest_from = (*target, *places.arguments())
    downloads = [*special, Download(wanted=rest, index=None, arguments=rest_from)]
    if alone:
        arguments = ("--no-deps", *rest_from)
        downloads.append(Download(wanted=alone, index=None, arguments=arguments))
    return tuple(downloads)


def only_place(stack: Stack, package: str, places: Places) -> tuple[str, ...]:
    """Where to look for one package: the user's places, or else the index that serves it."""
    index = index_of(stack, package)
    return places.arguments() or ((option(index),) if index else ())


def option(index: Index) -> str:
    return f"--{index.option}={index.url}"


def special_packages(stack: Stack, *, any_torch: bool) -> list[str]:
    """What is not on pip's own index; torch last: it is the largest, and PyPI's is for CUDA."""
    names = [name for index in stack.indexes if index.only_there for name in index.serves]
    if own_bindings(stack):
        names.append(BINDINGS)
    if index_of(stack, TORCH) and not any_torch:
        names.append(TORCH)
    return [name for name in names if name in stack.requirements]


def requirement(stack: Stack, package: str, *, any_torch: bool) -> str:
    """NAME==VERSION; torch as +cpu, so that pip never takes the CUDA build in its place."""
    version = stack.requirements[package]
    cpu = package == TORCH and index_of(stack, TORCH) and not any_torch and "+" not in version
    return f"{package}=={version}+cpu" if cpu else f"{package}=={version}"


def for_python(version: str | None) -> tuple[str, ...]:
    """Wheels for another Python than the one that runs pip."""
    return ("--only-binary=:all:", f"--python-version={version}") if version else ()


# What pip writes into its log, of every page that it goes on without.
SKIPPED = re.compile(r"Could not fetch URL (\S+): (.*?)(?: - skipping)?$", re.MULTILINE)
NOT_THERE = re.compile(r"No matching distribution found for (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a download failed: the wheel, the words of pip, and what could serve instead."""

    message: str
    hint: str


def obstacle(stack: Stack, download: Download, log: str, stacks: Sequence[Stack]) -> Obstacle:
    """pip's log as: which wheel is missing from where, and what to do."""
    missing = NOT_THERE.search(log)
    wheel = missing.group(1) if missing else ", ".join(download.wanted)
    package = wheel.partition("==")[0].lower().replace("_", "-")
    index = download.index or index_of(stack, package)
    return Obstacle(
        message=f"Stack '{stack.name}' wants {wheel}, and it could not be had: "
        f"{reason(log, index, missing is not None)}",
        hint=hint(stack, package, stacks),
    )


def reason(log: str, index: Index | None, missing: bool) -> str:
    if cut := unreachable(log, index):
        return f"{cut[0]} cannot be reached: {cut[1].removeprefix('connection error: ')}."
    if missing:
        return "no place that pip looked at has it."
    errors = [line.partition("ERROR: ")[2] for line in log.splitlines() if "ERROR: " in line]
    return errors[-1] if errors else "pip gave no reason."


def unreachable(log: str, index: Index | None) -> tuple[str, str] | None:
    """(place, reason): the package's own index if that is among the pages that were skipped."""
    # A page that is not found belongs to an index that merely lacks the package.
    skipped = [page for page in SKIPPED.findall(log) if "404 Client Error" not in page[1]]
    if index:
        for url, words in skipped:
            if url.startswith(index.url):
                return f"{index.name} ({index.url})", words
    return skipped[0] if skipped else None


def hint(stack: Stack, package: str, stacks: Sequence[Stack]) -> str:
    others = "; ".join(alternatives(stack, package, stacks))
    if package == TORCH:
        return f"PyPI's torch is the CUDA build of several GB: --any-torch takes it; {others}."
    if package == BINDINGS and own_bindings(stack):
        return (
            "It is built here: pip wheel ./bindings --no-deps --wheel-dir DIR, with the folder of "
            "--to as DIR, then fetch again."
        )
    return f"What else serves: {others}."
