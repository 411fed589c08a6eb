"""`orch provision`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson
from orchestrator.screen import say

Inventory = Annotated[
    str, typer.Argument(metavar="INVENTORY", help="Path or name of an Ansible inventory.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print Ansible's own output instead of progress.")
]
AskBecomePass = Annotated[
    bool, typer.Option("--ask-become-pass", "-K", help="Ask for the sudo password.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="A data set to bring to data/ on the nodes; repeatable."),
]


def provision(
    inventory: Inventory,
    stack: Annotated[str, typer.Option(help="The stack (set of versions) to install.")] = "current",
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; report drift (exit code 1).")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify also what was verified before.")
    ] = False,
    wheels: Annotated[
        str, typer.Option(help="wheelhouse: push from here; index: nodes use their own index.")
    ] = "wheelhouse",
    find_links: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="Wheels that no index has; repeatable."),
    ] = None,
    data: Data = None,
    docker_load: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.tar",
            help="An image for runs in containers: engines are installed and load it.",
        ),
    ] = None,
    ask_become_pass: AskBecomePass = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Set up all nodes of an inventory: from whatever they are to one verified state."""
    from orchestrator.cli.progress import Progress, become_password
    from orchestrator.errors import RequestError
    from orchestrator.operations import provision as operation
    from orchestrator.provisioning.plan import ProvisionRequest
    from orchestrator.report import provision as report

    if wheels not in ("wheelhouse", "index"):
        raise RequestError(
            f"--wheels {wheels}: there is no such source of wheels.",
            hint="Give wheelhouse or index.",
        )
    progress = Progress(verbose=verbose)
    with become_password(ask_become_pass) as environment:
        done = operation.provision(
            ProvisionRequest(
                inventory=inventory,
                stack=stack,
                check=check,
                index=wheels == "index",
                verify=verify,
                data=tuple(data or ()),
                find_links=tuple(find_links or ()),
                may_become=bool(environment),
                docker_load=docker_load,
            ),
            progress.listener(),
            environment,
        )
    say(report.as_json(done) if as_json else report.text(done))
    raise typer.Exit(done.exit_code)
