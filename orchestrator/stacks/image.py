"""The image of a stack: its Dockerfile, and the commands that build, save and push it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.errors import PlanError
from orchestrator.model.command import Command
from orchestrator.stacks.stack import Stack

PYTHONS = ("3.13", "3.12", "3.11", "3.10", "3.9", "3.8", "3.7")
NAME = re.compile(r"[a-z0-9][\w./:-]*(@sha256:[0-9a-f]{64})?")
GLIBC = "2.36"  # of Debian bookworm, which the base images are made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What to build. `base`: an image with Python, by tag or pinned by digest."""

    stack: Stack
    tag: str
    base: str
    engine: str = "docker"
    user: str = "mpiuser"
    uid: int = 1000

    def dockerfile(self) -> str:
        import jinja2  # planning needs the names of images alone, and is quicker without it

        environment = jinja2.Environment(  # nosec B701
            loader=jinja2.PackageLoader("orchestrator"),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
        )
        template = environment.get_template("image/Dockerfile.j2")
        return template.render(stack=self.stack, base=self.base, user=self.user, uid=self.uid)

    def build(self, context: str) -> Command:
        return Command(argv=(self.engine, "build", "--tag", self.tag, context))

    def save(self, path: str) -> Command:
        return Command(argv=(self.engine, "save", "--output", path, self.tag))

    def push(self) -> Command:
        return Command(argv=(self.engine, "push", self.tag))

    def digest(self) -> Command:
        """What a registry calls it, once it was pushed; its own id before that."""
        form = "{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}"
        return Command(argv=(self.engine, "image", "inspect", "--format", form, self.tag))


def image_of(stack: Stack, *, tag: str | None, base: str | None, engine: str) -> Image:
    """Raises PlanError for names that no engine takes."""
    made = Image(
        stack=stack,
        tag=tag or f"orch:{stack.name}",
        base=base or f"python:{python_for(stack)}-slim-bookworm",
        engine=engine,
    )
    for what, name in (("--tag", made.tag), ("--base", made.base)):
        if not NAME.fullmatch(name):
            raise PlanError(
                f"{what} {name!r} is no name of an image.", hint="Examples: orch:current, registry.example/team/orch:1."
            )
    return made


def python_for(stack: Stack) -> str:
    """3.11 where the stack takes it: Debian bookworm's own; else the newest that it takes."""
    fitting = [one for one in ("3.11", *PYTHONS) if stack.runs_on_python(one)]
    if not fitting:
        raise PlanError(f"Stack '{stack.name}' wants Python {stack.python}.", hint="Give an image that has it: --base.")
    return fitting[0]


def python_of(base: str, stack: Stack) -> str:
    """The Python of a base image, as its name says it."""
    match = re.search(r"(?:^|/)python:(3\.\d+)", base)
    return match.group(1) if match else python_for(stack)
