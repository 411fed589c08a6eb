"""`orch provision`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import groups
from orchestrator.cli.options import AsJson
from orchestrator.cli.train import TargetFlags, asked
from orchestrator.screen import say

if TYPE_CHECKING:
    from orchestrator.provisioning.plan import ProvisionRequest
    from orchestrator.provisioning.report import Report
    from orchestrator.provisioning.session import Listener

Inventory = Annotated[str, typer.Argument(metavar="INVENTORY", help="Path or name of an Ansible inventory.")]
Inventories = Annotated[str | None, typer.Argument(metavar="INVENTORY", help="Path or name of an Ansible inventory.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print Ansible's own output instead of progress.")]
AskBecomePass = Annotated[bool, typer.Option("--ask-become-pass", "-K", help="Ask for the sudo password.")]
Data = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="A data set to bring to data/ on the nodes; repeatable.")
]


On = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Instead of an inventory: fill the one folder that all nodes of this engine see."
    ),
]
StackName = Annotated[str, typer.Option(metavar="NAME", help="The stack (set of versions) to install.")]
Check = Annotated[bool, typer.Option("--check", help="Change nothing; report drift (exit code 1).")]
Verify = Annotated[bool, typer.Option("--verify", help="Verify also what was verified before.")]
Wheels = Annotated[
    str, typer.Option(metavar="wheelhouse|index", help="wheelhouse: push from here; index: nodes use their own index.")
]
FindLinks = Annotated[list[str] | None, typer.Option(metavar="FOLDER", help="Wheels that no index has; repeatable.")]
DockerLoad = Annotated[
    str | None,
    typer.Option(metavar="FILE.tar", help="An image for runs in containers: engines are installed and load it."),
]


def command(target: TargetFlags) -> Callable[..., None]:
    """`orch provision`; with the options of the target whose nodes see one folder."""
    return groups.command(provision, options=target.group)


def provision(
    context: typer.Context,
    options: Any,
    inventory: Inventories = None,
    on: On = None,
    stack: StackName = "current",
    check: Check = False,
    verify: Verify = False,
    wheels: Wheels = "wheelhouse",
    find_links: FindLinks = None,
    data: Data = None,
    docker_load: DockerLoad = None,
    ask_become_pass: AskBecomePass = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Set up all nodes of an inventory: from whatever they are to one verified state."""
    from orchestrator.cli.progress import Progress, become_password
    from orchestrator.planning.refusal import check_foreign
    from orchestrator.provisioning.plan import ProvisionRequest
    from orchestrator.report import provision as report

    check_source(wheels)
    check_where(inventory, on, of_nodes=verify or data or docker_load or ask_become_pass)
    options = asked(options, on, context)
    check_foreign((options,), on)
    progress = Progress(verbose=verbose)
    with become_password(ask_become_pass) as environment:
        request = ProvisionRequest(
            inventory=inventory or "",
            stack=stack,
            check=check,
            index=wheels == "index",
            verify=verify,
            data=tuple(data or ()),
            find_links=tuple(find_links or ()),
            may_become=bool(environment),
            docker_load=docker_load,
        )
        done = provisioned(request, on, options, progress.listener(), environment)
    say(report.as_json(done) if as_json else report.text(done))
    raise typer.Exit(done.exit_code)


def provisioned(
    request: ProvisionRequest, on: str | None, options: Any, listener: Listener, environment: Mapping[str, str]
) -> Report:
    """The nodes of the request's inventory, or the folder that the engine `on` has."""
    from orchestrator.operations import provision as operation
    from orchestrator.operations import provision_shared as shared
    from orchestrator.targets import registry

    if on is None:
        return operation.provision(request, listener, environment)
    folder = registry.named(on).shared_folder((options,))
    return shared.provision_shared(folder, request, listener, environment)


def check_source(wheels: str) -> None:
    """Raises RequestError."""
    from orchestrator.errors import RequestError

    if wheels not in ("wheelhouse", "index"):
        raise RequestError(f"--wheels {wheels}: there is no such source of wheels.", hint="Give wheelhouse or index.")


def check_where(inventory: str | None, on: str | None, *, of_nodes: object) -> None:
    """Raises RequestError."""
    from orchestrator.errors import RequestError

    if (inventory is None) == (on is None):
        raise RequestError("Which hosts are meant?", hint="`orch provision INVENTORY`, or `orch provision --on NAME`.")
    if on and of_nodes:
        raise RequestError(
            f"--on {on} fills a folder with the stack and the scripts, and nothing else.",
            hint="Leave out --verify, --data, --docker-load and --ask-become-pass.",
        )
