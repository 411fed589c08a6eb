"""How a target describes itself and its options to the command line, without being imported."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planning.request import FOR_SHARED_FOLDER as FOR_SHARED_FOLDER
from orchestrator.planning.request import OPTION as OPTION
from orchestrator.planning.request import TargetOptions, UnsupportedOption
from orchestrator.planning.request import option as option


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEntry:
    """A target that `orch train --on NAME` knows; packages provide it by an entry point of the group `orch.targets`.

    Attributes:
        name: the name of the target in run records.
        title: the heading of its options in the help.
        summary: the sentence about the target in the help of --on.
        options: the dataclass of its options, made with `option`; its `on` is the value of --on.
        target: the subclass of `Target`, or a function that returns one, as `package.module:name`; imported
            when it is used.
        launchers: launchers that only this target has, its default first.
        has_manifest: whether `-o yaml` can print its plans.
        has_shared_folder: whether `orch provision --on` can set it up.
    """

    name: str
    title: str
    summary: str
    options: type[TargetOptions]
    target: str
    launchers: tuple[str, ...] = ()
    has_manifest: bool = False
    has_shared_folder: bool = False


def refused_by_manager(manager: str, inventory: str, exclude: str) -> dict[str, UnsupportedOption]:
    """Return why a target whose hosts another program manages refuses fields of a request, by the names of the fields.

    Args:
        manager: the name of the program.
        inventory: how to choose its hosts, in place of an inventory.
        exclude: how to leave hosts out.
    """
    nodes = "is for nodes behind SSH"
    return {
        "inventory": UnsupportedOption(nodes, inventory),
        "exclude": UnsupportedOption(nodes, exclude),
        "wait_for_cores": UnsupportedOption(nodes, f"Runs on {manager} wait for free nodes by themselves."),
        "ccl_workers": UnsupportedOption(nodes, "Leave it out: each rank computes on all of its cores."),
        "fabric": UnsupportedOption(f"{nodes}, on which it was verified", "Leave it out: ranks use TCP."),
        "accelerate_config": UnsupportedOption(
            f"is not read on {manager}", "Use the options --nodes, --ppn and --precision."
        ),
    }
