"""The names of a stack's container image and of its base image."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.errors import PlanError
from orchestrator.stacks.stack import Stack

# In order of preference: 3.11 is Debian bookworm's own.
PYTHONS = ("3.11", "3.13", "3.12", "3.10", "3.9", "3.8", "3.7")
NAME = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")
GLIBC = "2.36"  # of Debian bookworm, on which the base images are built


@dataclass(frozen=True, slots=True, kw_only=True)
class StackImage:
    """An image to build."""

    stack: Stack
    tag: str
    base: str  # an image with Python, by tag or pinned by digest
    engine: str = "docker"


def make_image(stack: Stack, *, tag: str | None, base: str | None, engine: str) -> StackImage:
    """Return the image of a stack, with defaults for tag and base.

    Raises:
        PlanError: if tag or base is not the name of an image.
    """
    image = StackImage(
        stack=stack,
        tag=tag or f"orch:{stack.name}",
        base=base or f"python:{python_for(stack)}-slim-bookworm",
        engine=engine,
    )
    for option, name in (("--tag", image.tag), ("--base", image.base)):
        if not NAME.fullmatch(name):
            raise PlanError(
                f"{option} {name!r}: not a valid image name.",
                hint="Examples: orch:current, registry.example/team/orch:1.",
            )
    return image


def python_for(stack: Stack) -> str:
    """Return the preferred Python version among those that the stack runs on."""
    for version in PYTHONS:
        if stack.runs_on_python(version):
            return version
    raise PlanError(
        f"Stack '{stack.name}' requires Python {stack.python}, and no default base image has it.",
        hint="Name an image that has it: --base.",
    )


def python_of(base: str, stack: Stack) -> str:
    """Return the Python version that a base image's name states, else the preferred one."""
    match = re.search(r"(?:^|/)python:(3\.\d+)", base)
    return match.group(1) if match else python_for(stack)
