"""`orch image build`, `orch image save`, `orch image push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import load
from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson, UserPackages, print_error
from orchestrator.errors import RequestError
from orchestrator.operations import image as operation
from orchestrator.report.listing import json_text
from orchestrator.screen import print_text

app = App(help="Build, save and push the container image of a stack.")
StackName = Annotated[str, typer.Argument(metavar="STACK")]
Tag = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the image. Default: orch:STACK.")]
Engine = Annotated[str, typer.Option(metavar="PROGRAM", help="docker, podman, or a program with the same commands.")]


@app.command()
def build(
    stack: StackName = "current",
    tag: Tag = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Base image with Python; a digest is allowed: python:3.11-slim@sha256:..."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Python version of the base image, if its name does not contain it."),
    ] = None,
    find_links: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="Folder of wheels that no index has.")
    ] = None,
    requirements: UserPackages = None,
    inventory: Annotated[
        str | None, typer.Option(metavar="NAME", help="Inventory whose orch_requirements are added, too.")
    ] = None,
    context: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the build context.")] = Path("orch-image"),
    engine: Engine = "docker",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the Dockerfile and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build the image of a stack from its wheels and print its digest."""
    if dry_run and as_json:
        raise RequestError("--json does not work with --dry-run, which prints the Dockerfile.", hint="Omit --json.")
    image = operation.image_of(stack, tag=tag, base=base, engine=engine)
    if dry_run:
        print_text(image.dockerfile(), nl=False, program=True)
        return
    common_file = load.cluster(inventory).requirements if inventory else None
    packages = load.shared_requirements(requirements, common_file)
    operation.check_engine(engine)
    operation.lay_out(image, context, tuple(find_links or ()), python, print_error, requirements=packages)
    digest = operation.build(image, context)
    print_text(json_text("image", tag=image.tag, digest=digest) if as_json else f"{image.tag} {digest}")


@app.command()
def save(
    path: Annotated[Path, typer.Argument(metavar="FILE.tar")],
    stack: Annotated[str, typer.Option(metavar="NAME", help="Stack of the image.")] = "current",
    tag: Tag = None,
    engine: Engine = "docker",
    as_json: AsJson = False,
) -> None:
    """Write an image to a file, for nodes without a registry, and print its SHA-256."""
    image = operation.image_of(stack, tag=tag, engine=engine)
    digest = operation.save(image, path)
    print_text(json_text("image file", path=str(path), sha256=digest) if as_json else f"{path} sha256:{digest}")


@app.command()
def push(stack: StackName = "current", tag: Tag = None, engine: Engine = "docker", as_json: AsJson = False) -> None:
    """Push an image to the registry in its name and print its digest there."""
    image = operation.image_of(stack, tag=tag, engine=engine)
    digest = operation.push(image)
    print_text(json_text("image", tag=image.tag, digest=digest) if as_json else f"{image.tag} {digest}")
