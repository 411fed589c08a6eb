"""How a run goes on that has lost nodes: with spare ones in their place, or without them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import layouts


@dataclass(frozen=True)
class Mended:
    """The layout of the next attempt, and the launcher's command for it."""

    layout: layouts.Layout
    argv: list[str]


def mend(
    run_dir: Path,
    now: Mended,
    *,
    lost: set[str],
    gone: set[str],
    options: argparse.Namespace,
    tell: Callable[[str], None],
) -> Mended | None:
    """None if the run needs the nodes that are `lost`. `gone`: all that cannot be reached, spare
    ones too. Writes the hostfile, if the launcher has one."""
    hostfile = run_dir / "hostfile"
    hosts = hostfile.read_text() if hostfile.exists() else ""
    layout, argv = now.layout, now.argv
    spares = [name for name in layouts.spares_of(layout) if name not in gone]
    stand_ins = dict(zip(sorted(lost), spares, strict=False))
    if stand_ins:
        for node, spare in stand_ins.items():
            tell(f"{spare} takes the place of {node}")
        hosts = layouts.hosts_replaced(hosts, layout, stand_ins) if hosts else ""
        layout = layouts.replaced(layout, stand_ins)
    if missing := lost - set(stand_ins):
        if words := needs(layout, missing, options):
            tell(f"no restart: {words}")
            return None
        hosts = layouts.hosts_without(hosts, layout, missing) if hosts else ""
        layout = layouts.without(layout, missing)
        argv = layouts.resized(argv, layout, options.size_at, options.nodes_at)
    if hosts:
        hostfile.write_text(hosts)
    return Mended(layout, argv)


def needs(layout: layouts.Layout, missing: set[str], options: argparse.Namespace) -> str:
    """Why the run cannot go on without these nodes, or nothing."""
    if not options.elastic:
        return "the recipe needs all of its ranks"
    if len(layouts.nodes_of(layout)) - len(missing) < options.min_nodes:
        return f"the run needs {options.min_nodes} nodes"
    return ""
