"""The commands `orch setup` and `orch init`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import load
from orchestrator.cli.options import UserPackages
from orchestrator.cli.stacks import complete_names
from orchestrator.load.hostfile import Hostfile, load_hostfile
from orchestrator.operations import init as operation
from orchestrator.operations.setup import set_up
from orchestrator.screen import print_text


def setup(
    stack: Annotated[
        str,
        typer.Option(metavar="NAME", help="Stack to install; `orch stacks` lists them.", autocompletion=complete_names),
    ] = "current",
    wheels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with the wheel of the ccl bindings, as in a release. Default: build the "
            "wheel, which needs a compiler.",
        ),
    ] = None,
    requirements: UserPackages = None,
) -> None:
    """Install a stack into orch's environment, for training on this machine.

    Installs PyTorch for CPU, the ccl backend, MPI and the packages of the recipes, then checks
    them. Packages that are already installed are kept.
    """
    began = time.monotonic()

    def notify(line: str) -> None:
        print_text(f"[{time.monotonic() - began:6.1f}s] {line}", err=True)

    shared = load.shared_requirements(requirements)
    set_up(load.stack(stack), Path(sys.prefix), wheels, requirements=shared, notify=notify)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST",
            help="node1, alice@node1, alice@node1:2222, an address, or a range such as "
            "node[1-8]. With --from-ssh-config: hosts to select. Default: all.",
        ),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read the hosts from a hostfile of MPI or a batch system; - is the standard input."
        ),
    ] = None,
    from_ssh_config: Annotated[
        bool, typer.Option("--from-ssh-config", help="Read the hosts from an SSH configuration.")
    ] = False,
    ssh_config: Annotated[Path, typer.Option(metavar="FILE", help="SSH configuration to read.")] = Path(
        "~/.ssh/config"
    ),
) -> None:
    """Create inventory/NAME/hosts.yml, an inventory with the hosts of a cluster and comments."""
    config = ssh_config.expanduser() if from_ssh_config else None
    listed = load_hostfile(hostfile) if hostfile else Hostfile((), frozenset())
    folder = operation.init(name, (*(hosts or ()), *listed.hosts), config)
    print_text(f"Created {folder}/hosts.yml. Review it, then run:\n  orch provision {folder}")
    if max(listed.slots, default=1) > 1:
        slots = " or ".join(map(str, sorted(listed.slots)))
        print_text(f"The inventory does not record the slots of {hostfile} ({slots}): use `orch train --ppn N`.")
