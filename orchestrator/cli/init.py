"""`orch init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.screen import say


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the cluster is called.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST",
            help="node1, alice@node1, alice@node1:2222, an address, or a range such as "
            "node[1-8]; with --from-ssh-config: which of its hosts, default all.",
        ),
    ] = None,
    from_ssh_config: Annotated[
        bool, typer.Option("--from-ssh-config", help="Take the hosts of an SSH configuration.")
    ] = False,
    ssh_config: Annotated[Path, typer.Option(metavar="FILE", help="The SSH configuration to read.")] = Path(
        "~/.ssh/config"
    ),
) -> None:
    """Write inventory/NAME/hosts.yml, the hosts of a cluster, with comments to edit."""
    from orchestrator.operations import init as operation

    config = ssh_config.expanduser() if from_ssh_config else None
    folder = operation.init(name, hosts or (), config)
    say(f"{folder}/hosts.yml is written; edit what is not right, then:\n  orch provision {folder}")
