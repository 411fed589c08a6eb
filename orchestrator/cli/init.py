"""The command `orch init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.load.hostfile import Hostfile, load_hostfile
from orchestrator.operations import init as operation
from orchestrator.screen import print_text


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
