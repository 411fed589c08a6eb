"""Plan the next attempt of a run that has lost nodes: with spare nodes, or without them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping

from orch_node import atomic_write
from orch_node.protocol import files
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.node_names import fold
from orch_node.supervisor.run import SupervisedRun

# The number of ranks behind the address in a hostfile: `:2` for hydra, ` slots=2` for Open MPI.
RANKS_OF_HOST = re.compile(r"(:| slots=)\d+\s*$")


def recover(run: SupervisedRun, lost: set[str]) -> str:
    """Change the layout, the launcher's command and the hostfile of a run that has lost nodes.

    Return why it cannot continue without them, or ''.
    """
    current, argv, options = run.layout, run.launcher_argv, run.options
    spares = [name for name in current.spares if name not in run.agents.lost]
    stand_ins = dict(zip(sorted(lost), spares))
    missing = lost - set(stand_ins)
    for node, spare in stand_ins.items():
        run.record_news(f"{spare} replaces {node}")
    layout = current.replace_nodes(stand_ins)
    if missing:
        if reason := describe_missing(layout, missing, options):
            return reason
        layout = layout.remove_nodes(missing)
        run.record_news(describe_continuation(layout, missing, keeps_batch=options.keeps_batch))
        argv = resize_command(argv, layout, options.size_at, options.nodes_at)
    hostfile = run.run_dir / files.HOSTFILE
    if hostfile.exists():
        atomic_write.write(hostfile, replace_hosts(hostfile.read_text(), current, stand_ins, missing))
    run.layout, run.launcher_argv = layout, argv
    return ""


def describe_missing(layout: RunLayout, missing: set[str], options: argparse.Namespace) -> str:
    """Return why the run cannot continue without these nodes, or ''."""
    if not options.elastic:
        return (
            "fewer ranks would train with another global batch; use --spare-nodes to have other nodes "
            "replace lost ones, or --min-nodes to allow it"
        )
    if len(layout.node_names) - len(missing) < options.min_nodes:
        return f"the run needs {options.min_nodes} node{'s' * (options.min_nodes != 1)}"
    return ""


def describe_continuation(layout: RunLayout, missing: set[str], *, keeps_batch: bool) -> str:
    """Return how the run continues without some of its nodes.

    Args:
        layout: the remaining layout.
        missing: the nodes that it no longer has.
        keeps_batch: whether the recipe adapts to fewer ranks.
    """
    planned = layout.planned_size
    names = fold(sorted(missing, key=lambda name: (len(name), name)))
    text = f"continues without {names}: {layout.world_size} of {planned} ranks"
    if keeps_batch:
        return f"{text}; the recipe keeps its global batch, its order of data and its schedule"
    return (
        f"{text}, as --min-nodes allows; unless the script uses ORCH_PLANNED_WORLD_SIZE={planned}, "
        "its global batch is smaller from here on and its schedule changes"
    )


def replace_hosts(hostfile: str, layout: RunLayout, stand_ins: Mapping[str, str], missing: Collection[str]) -> str:
    """Return the hostfile with the addresses of spare nodes in place of lost ones, and without missing nodes.

    It has one line per node, in order.
    """
    lines = dict(zip(layout.node_names, hostfile.splitlines(keepends=True)))
    for node, spare in stand_ins.items():
        ranks = RANKS_OF_HOST.search(lines[node])
        assert ranks is not None, "orch has written the line"
        lines[node] = layout.spares[spare] + ranks.group()
    return "".join(line for node, line in lines.items() if node not in missing)


def resize_command(launcher: list[str], layout: RunLayout, size_at: int | None, nodes_at: int | None) -> list[str]:
    """Return the launcher's command with the numbers of a new layout.

    Args:
        launcher: the command.
        layout: the new layout.
        size_at: the index of the number of ranks; None if the launcher reads the layout itself.
        nodes_at: the index of the number of nodes, or None.
    """
    numbers = {size_at: str(layout.world_size), nodes_at: str(len(layout.node_names))}
    return [numbers.get(index, word) for index, word in enumerate(launcher)]
