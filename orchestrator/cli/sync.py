"""The command `orch sync`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import AsJson
from orchestrator.cli.progress import Progress, become_password
from orchestrator.cli.provision import SOURCE, AskBecomePass, Data, Inventory, Verbose
from orchestrator.operations import provision as operation
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.report import provision as report
from orchestrator.screen import print_text


def sync(
    inventory: Inventory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report drift; exit code 1 if there is any.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar=SOURCE, help="Model of a hub, a URL or this machine for all nodes; may be repeated."),
    ] = None,
    data: Data = None,
    ask_become_pass: AskBecomePass = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Update scripts, environment, secrets, models and data on provisioned nodes."""
    request = ProvisionRequest(inventory=inventory, dry_run=dry_run, models=tuple(model or ()), data=tuple(data or ()))
    with become_password(ask_become_pass) as environment:
        done = operation.sync(request, Progress(verbose=verbose).listener(), environment)
    print_text(report.as_json(done) if as_json else report.text(done))
    raise typer.Exit(done.exit_code)
