"""The commands that set up machines: `orch setup`, `orch init`, `orch provision` and `orch sync`."""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.models import ParameterInfo

from orchestrator import load
from orchestrator.cli.options import PANELS, USER_PACKAGES, AsJson, Group, UserPackages, make_command, print_error
from orchestrator.cli.train import TARGETS, group_of
from orchestrator.errors import RequestError
from orchestrator.load.hostfile import load_hostfile
from orchestrator.operations import provision as operation
from orchestrator.operations.init import init as create_inventory
from orchestrator.operations.provision import Listener, ProvisionRequest, TaskResult
from orchestrator.operations.setup import set_up
from orchestrator.planning.request import TRAINING, check_foreign
from orchestrator.report import provision as report
from orchestrator.screen import print_text
from orchestrator.targets import registry

PASSWORD_FILES = ("ANSIBLE_BECOME_PASSWORD_FILE", "ANSIBLE_BECOME_PASS_FILE")
INVENTORY = typer.Argument(envvar="ORCH_INVENTORY", metavar="INVENTORY", help="Name or path of an Ansible inventory.")
SOURCE = "NAME|URL|PATH"


def make_listener(verbose: bool = False) -> Listener:
    """Return a listener that prints one line per task that took time, changed something or failed."""
    began = time.monotonic()

    def note(text: str) -> None:
        print_text(f"[{time.monotonic() - began:6.1f}s] {text}", err=True)

    def show(result: TaskResult) -> None:
        state = "changed" if result.changed else result.state
        note(f"{result.node:<12} {result.role}: {result.task} ({result.seconds:.1f}s) {state}")

    return Listener(line=print_error) if verbose else Listener(note=note, result=show)


@contextlib.contextmanager
def become_password(is_interactive: bool) -> Iterator[Mapping[str, str]]:
    """Yield environment variables that pass the sudo password to Ansible, in a file that ends with this process."""
    if not is_interactive:
        yield {name: os.environ[name] for name in PASSWORD_FILES if name in os.environ}
        return
    try:
        password = getpass.getpass("sudo password of the nodes: ")
    except EOFError:
        raise RequestError.about("no-sudo-password", variable=PASSWORD_FILES[0]) from None
    with os.fdopen(os.memfd_create("orch-become"), "w") as file:
        os.fchmod(file.fileno(), 0o600)  # Ansible would run an executable file
        file.write(f"{password}\n")
        file.flush()
        yield {PASSWORD_FILES[0]: f"/proc/{os.getpid()}/fd/{file.fileno()}"}


Inventory = Annotated[str, INVENTORY]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print Ansible's output instead of progress.")]
AskBecomePass = Annotated[bool, typer.Option("--ask-become-pass", "-K", help="Ask for the sudo password.")]
SHARED = {target.options.on: target for target in TARGETS if target.has_shared_folder}
TargetName = Annotated[
    str | None, typer.Option("--on", metavar="|".join(SHARED), help="Set up a shared folder instead of an inventory.")
]
Wheels = Annotated[
    Literal["wheelhouse", "index"],
    typer.Option(metavar="wheelhouse|index", help="wheelhouse: copied from this machine; index: nodes download."),
]
# Options that set fields of a ProvisionRequest.
OPTIONS: Mapping[str, ParameterInfo] = {
    "stack": PANELS[TRAINING]["stack"],
    "dry_run": typer.Option(help="Only report drift; exit code 1 if there is any."),
    "verify": typer.Option(help="Repeat checks that have already passed."),
    "no_stack": typer.Option(help="Install Python and MPI alone, for nodes with your own environment (--venv)."),
    "find_links": typer.Option(metavar="FOLDER", help="Folder of wheels that no index has; may be repeated."),
    "requirements": USER_PACKAGES,
    "data": typer.Option(metavar=SOURCE, help="Data set of a hub, a URL or this machine; may be repeated."),
    "docker_load": typer.Option(metavar="FILE.tar", help="Image for --image: install a container engine and load it."),
}
MODELS = typer.Option("--model", metavar=SOURCE, help="Model of a hub, a URL or this machine; may be repeated.")


def provision(
    request: ProvisionRequest,
    inventory: Annotated[str | None, INVENTORY] = None,
    target: TargetName = None,
    wheels: Wheels = "wheelhouse",
    ask_become_pass: AskBecomePass = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    **target_options: Any,
) -> None:
    """Set up all nodes of an inventory and verify them."""
    of_nodes = request.verify or request.data or request.docker_load or request.no_stack or ask_become_pass
    check_where(inventory, target, of_nodes=of_nodes)
    options = tuple(target_options.values())
    check_foreign(options, target)
    listener = make_listener(verbose)
    with become_password(ask_become_pass) as environment:
        request = replace(request, inventory=inventory or "", index=wheels == "index", may_become=bool(environment))
        if target is None:
            done = operation.provision(request, listener, environment)
        else:
            folder = registry.find_target(target).shared_folder(options)
            done = operation.provision_shared(folder, request, listener, environment)
    print_text(report.as_json(done) if as_json else report.text(done))
    raise typer.Exit(done.exit_code)


def check_where(inventory: str | None, target: str | None, *, of_nodes: object) -> None:
    """Raise RequestError unless exactly one of inventory and target is named."""
    if (inventory is None) == (target is None):
        raise RequestError.about("nodes-to-provision")
    if target and of_nodes:
        raise RequestError.about("option-of-nodes", target=target)


provision_command = make_command(
    provision,
    request=Group(kind=ProvisionRequest, panels={"Options": OPTIONS}, fixed={"inventory": ""}),
    **{name: group_of(target, for_shared_folder=True) for name, target in SHARED.items()},
)


def sync(
    request: ProvisionRequest, ask_become_pass: AskBecomePass = False, verbose: Verbose = False, as_json: AsJson = False
) -> None:
    """Update scripts, environment, secrets, models and data on provisioned nodes."""
    with become_password(ask_become_pass) as environment:
        done = operation.sync(request, make_listener(verbose), environment)
    print_text(report.as_json(done) if as_json else report.text(done))
    raise typer.Exit(done.exit_code)


SYNC_OPTIONS = {"dry_run": OPTIONS["dry_run"], "models": MODELS, "data": OPTIONS["data"]}
sync_command = make_command(
    sync, request=Group(kind=ProvisionRequest, panels={"Arguments": {"inventory": INVENTORY}, "Options": SYNC_OPTIONS})
)


def setup(
    stack: Annotated[str, PANELS[TRAINING]["stack"]] = "current",
    wheels: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the ccl bindings' wheel. Default: build it (needs a compiler)."),
    ] = None,
    requirements: UserPackages = None,
) -> None:
    """Install a stack into orch's environment, for training on this machine.

    Installs PyTorch for CPU, the ccl backend, MPI and the packages of the recipes, then checks
    them. Packages that are already installed are kept.
    """
    set_up(load.stack(stack), wheels, load.shared_requirements(requirements), make_listener().note)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST", help="alice@node1:2222, an address, node[1-8]; with --from-ssh-config, hosts to select."
        ),
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hostfile of MPI or a batch system; - is the standard input.")
    ] = None,
    from_ssh_config: Annotated[
        bool, typer.Option("--from-ssh-config", help="Read the hosts from --ssh-config.")
    ] = False,
    ssh_config: Annotated[Path, typer.Option(metavar="FILE", help="SSH configuration to read.")] = Path(
        "~/.ssh/config"
    ),
) -> None:
    """Create inventory/NAME/hosts.yml, an inventory with the hosts of a cluster and comments.

    With --from-ssh-config and without HOST, it gets all hosts of the SSH configuration.
    """
    config = ssh_config.expanduser() if from_ssh_config else None
    listed = load_hostfile(hostfile) if hostfile else {}
    folder = create_inventory(name, (*(hosts or ()), *listed), config)
    print_text(f"Created {folder}/hosts.yml. Review it, then run:\n  orch provision {folder}")
    if max(listed.values(), default=1) > 1:
        slots = " or ".join(map(str, sorted({*listed.values()})))
        print_text(f"The inventory does not record the slots of {hostfile} ({slots}): use `orch train --ppn N`.")
