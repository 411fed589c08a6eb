"""How a run goes on that has lost nodes: with spare ones in their place, or without them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orch_node import whole_files
from orch_node.protocol import files
from orch_node.protocol.layout import RunLayout
from orch_node.supervisor import layouts


@dataclass(frozen=True)
class Recovery:
    """The layout of the next attempt, and the launcher's command for it."""

    layout: RunLayout
    argv: list[str]


def recover(
    run_dir: Path,
    now: Recovery,
    *,
    lost: set[str],
    gone: set[str],
    options: argparse.Namespace,
    tell: Callable[[str], None],
) -> Recovery | None:
    """None if the run needs the nodes that are `lost`. `gone`: all that cannot be reached, spare
    ones too. Writes the hostfile, if the launcher has one."""
    hostfile = run_dir / files.HOSTFILE
    hosts = hostfile.read_text() if hostfile.exists() else ""
    layout, argv = now.layout, now.argv
    spares = [name for name in layout.spare_hosts if name not in gone]
    stand_ins = dict(zip(sorted(lost), spares, strict=False))
    if stand_ins:
        for node, spare in stand_ins.items():
            tell(f"{spare} takes the place of {node}")
        hosts = layouts.hosts_replaced(hosts, layout, stand_ins) if hosts else ""
        layout = layout.replaced(stand_ins)
    if missing := lost - set(stand_ins):
        if words := needs(layout, missing, options):
            tell(f"no restart: {words}")
            return None
        hosts = layouts.hosts_without(hosts, layout, missing) if hosts else ""
        layout = layout.without(missing)
        tell(goes_on(layout, missing, keeps_batch=options.keeps_batch))
        argv = layouts.resized(argv, layout, options.size_at, options.nodes_at)
    if hosts:
        whole_files.write(hostfile, hosts)
    return Recovery(layout, argv)


def needs(layout: RunLayout, missing: set[str], options: argparse.Namespace) -> str:
    """Why the run cannot go on without these nodes, or nothing."""
    if not options.elastic:
        return (
            "fewer ranks would train with another global batch; --spare-nodes has other nodes "
            "stand in, --min-nodes allows it"
        )
    if len(layout.node_names) - len(missing) < options.min_nodes:
        return f"the run needs {options.min_nodes} nodes"
    return ""


def goes_on(layout: RunLayout, missing: set[str], *, keeps_batch: bool) -> str:
    """What a run without some of its nodes is, in words. `layout`: what is left."""
    planned = layout.planned_size
    what = f"goes on without {', '.join(sorted(missing))}: {layout.world_size} of {planned} ranks"
    if keeps_batch:
        return f"{what}; the recipe keeps its global batch, its order of data and its schedule"
    return (
        f"{what}, as --min-nodes allows; unless the script takes ORCH_PLANNED_WORLD_SIZE={planned} "
        "into account, its global batch is smaller from here on, and its schedule another one"
    )
