"""Stacks, and what does not fit them, as text, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.report.listing import SCHEMA, table
from orchestrator.stacks.compatibility import Mismatch
from orchestrator.stacks.installed import Environment
from orchestrator.stacks.matrix import Platform, component_version, status
from orchestrator.stacks.stack import BINDINGS, Stack

COLUMNS = ("name", "torch", "ipex", "bindings", "backends", "python", "state")
Checked = tuple[Environment, Stack, tuple[Mismatch, ...]]


def row(stack: Stack, platform: Platform) -> dict[str, Any]:
    return {
        "name": stack.name,
        "torch": stack.torch,
        "ipex": stack.ipex or "-",
        "bindings": component_version(stack, "bindings") or "-",
        "backends": list(stack.backends),
        "python": stack.python,
        "state": list(status(stack, platform)),
        "summary": stack.summary,
    }


def listing(stacks: Sequence[Stack], platform: Platform) -> str:
    rows = [{**row(stack, platform), "state": "; ".join(status(stack, platform))} for stack in stacks]
    return table(rows, COLUMNS)


def as_json(stack: Stack, platform: Platform) -> str:
    value = asdict(stack)
    if stack.end_of_life:
        value["end_of_life"]["since"] = stack.end_of_life.since.isoformat()
    value["parity"] = [{**one, "date": one["date"].isoformat()} for one in value["parity"]]
    value["state"] = list(status(stack, platform))
    return json.dumps({"schema": SCHEMA, "kind": "stack", "stack": value}, indent=1)


def story(stack: Stack, platform: Platform) -> str:
    """All that is known of a stack, each fact with its source."""
    facts = [*head(stack, platform), *packages(stack), *bindings(stack), *indexes(stack)]
    facts += parity(stack)
    lines = [f"{stack.name}: {stack.summary}"]
    for name, value, key in facts:
        lines.append(f"  {name + ':':<30}{value}")
        lines += [f"{'':32}source: {stack.sources[key]}"] if key in stack.sources else []
    lines += [f"  settled, {fact}: {why}" for fact, why in stack.settled.items()]
    return "\n".join(lines)


Fact = tuple[str, str, str]  # name, value, key of its source


def head(stack: Stack, platform: Platform) -> Iterator[Fact]:
    yield "state here", "; ".join(status(stack, platform)), ""
    yield "python", stack.python, "python"
    yield "backends", ", ".join(stack.backends), ""
    yield "flags it honours", ", ".join(stack.flags) or "-", "flags"
    if stack.end_of_life:
        end = stack.end_of_life
        yield "end of life", f"{end.since}: {end.reason}", "end_of_life"


def packages(stack: Stack) -> Iterator[Fact]:
    for name, version in stack.requirements.items():
        alone = " (without its dependencies)" if name in stack.without_dependencies else ""
        yield name, version + alone, name


def bindings(stack: Stack) -> Iterator[Fact]:
    if (ours := stack.bindings) is None:
        return
    if BINDINGS not in stack.requirements:
        yield BINDINGS, f"{ours.version} (for the backend ccl)", BINDINGS
    yield "import name", ours.module, "module"
    yield "setvars.sh", f"<folder of {ours.module}>/{ours.setvars}", "setvars"
    yield "oneCCL in the bindings", ours.oneccl, "oneccl"


def indexes(stack: Stack) -> Iterator[Fact]:
    for index in stack.indexes:
        yield index.name, f"--{index.option} {index.url} for {', '.join(index.serves)}", "indexes"


def parity(stack: Stack) -> Iterator[Fact]:
    for one in stack.parity:
        where = f"{one.way}, {one.ranks} rank{'s' * (one.ranks > 1)}"
        yield ("bf16 with IPEX", f"at most {one.worst_percent} % off bf16 in 30 steps ({where}, {one.date})", "")


def checked_as_json(checked: Sequence[Checked]) -> str:
    nodes = [
        {"name": env.name, "stack": stack.name, "mismatches": [asdict(mismatch) for mismatch in found]}
        for env, stack, found in checked
    ]
    return json.dumps({"schema": SCHEMA, "kind": "check", "nodes": nodes}, indent=1)


def checked_as_text(checked: Sequence[Checked]) -> str:
    """Equal answers are given once, with the names of all that they are about."""
    groups: dict[tuple[str, tuple[Mismatch, ...]], list[str]] = {}
    for env, stack, found in checked:
        groups.setdefault((stack.name, found), []).append(env.name)
    return "\n".join(verdict(", ".join(names), stack, found) for (stack, found), names in groups.items())


def verdict(names: str, stack: str, found: tuple[Mismatch, ...]) -> str:
    if not found:
        return f"{names}: no mismatch (looked at as stack '{stack}')"
    count = f"{len(found)} mismatch{'es' * (len(found) != 1)}"
    return "\n".join([f"{names}: {count} (looked at as stack '{stack}')", *(m.describe() for m in found)])
