"""The commands of `orch stacks` and `orch image`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import load
from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson, UserPackages, complete_stacks, has_subcommand, print_error
from orchestrator.errors import RequestError
from orchestrator.operations import image as image_operation
from orchestrator.operations import stacks as operation
from orchestrator.report import listing
from orchestrator.report import stacks as report
from orchestrator.report.listing import json_text
from orchestrator.screen import print_text

app = App(help="List and check stacks: sets of compatible versions.", invoke_without_command=True)
image_app = App(help="Build, save and push the container image of a stack.")
StackName = Annotated[str, typer.Argument(metavar="STACK")]
Tag = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the image. Default: orch:STACK.")]
Engine = Annotated[str, typer.Option(metavar="PROGRAM", help="docker, podman, or a program with the same commands.")]


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_stacks)]
ForBackend = Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Only what this backend needs.")]


@app.callback()
def stacks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the stacks with their versions, and whether they work on this machine."""
    if has_subcommand(context):
        return
    stacks, machine = load.all_stacks(), operation.this_machine()
    rows = [report.row(stack, machine) for stack in stacks]
    print_text(json_text("stacks", stacks=rows) if as_json else report.listing(stacks, machine))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a stack in detail, each fact with its source."""
    stack, machine = load.stack(name), operation.this_machine()
    state = report.row(stack, machine)["state"]
    print_text(report.as_json(stack, machine) if as_json else operation.describe_facts(stack, state))


@app.command()
def check(
    stack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Stack to compare the versions with.", autocompletion=complete_stacks),
    ] = None,
    inventory: Annotated[str | None, typer.Option(metavar="INVENTORY", help="Check the nodes of an inventory.")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PROGRAM", help="Interpreter to check. Default: the one that runs orch.")
    ] = None,
    backend: ForBackend = None,
    shell: Annotated[bool, typer.Option("--shell", help="Also check this shell, for ranks without orch.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an environment and print every mismatch with its fix.

    Without --stack, only check that the versions are compatible with each other.

    The exit code is 1 if there is a mismatch.
    """
    if inventory and (python or shell):
        raise RequestError.about("nodes-or-this-machine")
    if backend and not stack:
        raise RequestError("--backend requires --stack.", hint="Add --stack NAME, or omit --backend.")
    environments = (
        operation.environments_of(inventory, print_error)
        if inventory
        else [operation.environment_of(python or sys.executable, shell=shell)]
    )
    checked = operation.check(environments, load.stack(stack, backend) if stack else None)
    print_text(report.checked_as_json(checked) if as_json else report.checked_as_text(checked))
    if any(mismatches for _, _, mismatches in checked):
        raise typer.Exit(1)


@app.command()
def requirements(
    name: Name,
    without_dependencies: Annotated[
        bool, typer.Option("--without-dependencies", help="Only packages to install with --no-deps.")
    ] = False,
    backend: ForBackend = None,
) -> None:
    """Print the packages of a stack as a requirements file for pip."""
    stack = load.stack(name, backend)
    for package, version in stack.requirements.items():
        if (package in stack.without_dependencies) == without_dependencies:
            print_text(f"{package}=={version}")


@image_app.command()
def build(
    stack: StackName = "current",
    tag: Tag = None,
    base: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Base image with Python, such as python:3.11-slim@sha256:...")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Python of the base image, if its name does not contain it.")
    ] = None,
    find_links: Annotated[list[str] | None, typer.Option(metavar="FOLDER", help="Wheels that no index has.")] = None,
    requirements: UserPackages = None,
    inventory: Annotated[str | None, typer.Option(metavar="INVENTORY", help="Add its orch_requirements.")] = None,
    context: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the build context.")] = Path("orch-image"),
    engine: Engine = "docker",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the Dockerfile and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build the image of a stack from its wheels and print its digest."""
    if dry_run and as_json:
        raise RequestError("--json does not work with --dry-run, which prints the Dockerfile.", hint="Omit --json.")
    image = image_operation.make_image(load.stack(stack), tag=tag, base=base, python=python, engine=engine)
    if dry_run:
        print_text(image_operation.dockerfile(image), nl=False, program=True)
        return
    common_file = load.cluster(inventory).requirements if inventory else None
    packages = load.shared_requirements(requirements, common_file)
    image_operation.check_engine(engine)
    image_operation.lay_out(image, context, tuple(find_links or ()), print_error, packages)
    digest = image_operation.build(image, context)
    print_text(listing.json_text("image", tag=image.tag, digest=digest) if as_json else f"{image.tag} {digest}")


@image_app.command()
def save(
    path: Annotated[Path, typer.Argument(metavar="FILE.tar")],
    stack: Annotated[str, typer.Option(metavar="NAME", help="Stack of the image.")] = "current",
    tag: Tag = None,
    engine: Engine = "docker",
    as_json: AsJson = False,
) -> None:
    """Write an image to a file, for nodes without a registry, and print its SHA-256."""
    image = image_operation.make_image(load.stack(stack), tag=tag, engine=engine)
    digest = image_operation.save(image, path)
    print_text(listing.json_text("image file", path=str(path), sha256=digest) if as_json else f"{path} sha256:{digest}")


@image_app.command()
def push(stack: StackName = "current", tag: Tag = None, engine: Engine = "docker", as_json: AsJson = False) -> None:
    """Push an image to the registry in its name and print its digest there."""
    image = image_operation.make_image(load.stack(stack), tag=tag, engine=engine)
    digest = image_operation.push(image)
    print_text(listing.json_text("image", tag=image.tag, digest=digest) if as_json else f"{image.tag} {digest}")
