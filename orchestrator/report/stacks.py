"""Stacks and mismatches with installed environments, as text, tables and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.model.decision import Finding
from orchestrator.model.hosts import grouped
from orchestrator.model.printable import counted
from orchestrator.report.listing import finding_lines, json_text, table
from orchestrator.stacks.compatibility import Environment, Machine, status
from orchestrator.stacks.stack import BINDINGS, Stack

COLUMNS = ("name", "torch", "ipex", "bindings", "backends", "python", "state")
Checked = tuple[Environment, Stack, tuple[Finding, ...]]


def row(stack: Stack, machine: Machine) -> dict[str, Any]:
    """Return a stack as a row of a listing."""
    return {
        "name": stack.name,
        "torch": stack.torch,
        "ipex": stack.ipex or "-",
        "bindings": stack.bindings.version if stack.bindings else "-",
        "backends": list(stack.backends),
        "python": stack.python,
        "state": list(status(stack, machine)),
        "summary": stack.summary,
    }


def listing(stacks: Sequence[Stack], machine: Machine) -> str:
    """Return the table of the stacks."""
    rows = [{**row(stack, machine), "state": "; ".join(status(stack, machine))} for stack in stacks]
    return table(rows, COLUMNS)


def as_json(stack: Stack, machine: Machine) -> str:
    """Return a stack with its state on this machine as JSON."""
    value = asdict(stack)
    if stack.end_of_life:
        value["end_of_life"]["since"] = stack.end_of_life.since.isoformat()
    value["state"] = list(status(stack, machine))
    return json_text("stack", stack=value)


def describe(stack: Stack, machine: Machine) -> str:
    """Return all recorded facts about a stack, each with its source."""
    lines = [f"{stack.name}: {stack.summary}"]
    for name, value, key in facts(stack, machine):
        lines.append(f"  {name + ':':<30}{value}")
        lines += [f"{'':32}source: {stack.sources[key]}"] if key in stack.sources else []
    lines += [f"  resolved conflict, {fact}: {reason}" for fact, reason in stack.resolved_conflicts.items()]
    return "\n".join(lines)


def facts(stack: Stack, machine: Machine) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each fact, its value, and the key of its source."""
    yield "state here", "; ".join(status(stack, machine)), ""
    yield "python", stack.python, "python"
    yield "backends", ", ".join(stack.backends), ""
    if stack.ipex:
        yield "--ipex trains right in", ", ".join(stack.ipex_precisions), ""
    yield "flags it honours", ", ".join(stack.flags) or "-", "flags"
    if end := stack.end_of_life:
        yield "end of life", f"{end.since}: {end.reason}", "end_of_life"
    for name, version in stack.requirements.items():
        suffix = " (without its dependencies)" if name in stack.without_dependencies else ""
        yield name, version + suffix, name
    if bindings := stack.bindings:
        if BINDINGS not in stack.requirements:
            yield BINDINGS, f"{bindings.version} (for the backend ccl)", BINDINGS
        yield "import name", bindings.module, "module"
        yield "setvars.sh", f"<folder of {bindings.module}>/{bindings.setvars}", "setvars"
        yield "oneCCL in the bindings", bindings.oneccl, "oneccl"
    for index in stack.indexes:
        yield index.name, f"--{index.option} {index.url} for {', '.join(index.serves)}", "indexes"


def checked_as_json(checked: Sequence[Checked]) -> str:
    """Return the mismatches of the checked environments as JSON."""
    nodes = []
    for env, stack, mismatches in checked:
        records = [
            {"package": finding.subject, "what": finding.message, "why": finding.evidence, "hint": finding.hint}
            for finding in mismatches
        ]
        nodes.append({"name": env.name, "stack": stack.name, "mismatches": records})
    return json_text("check", nodes=nodes)


def checked_as_text(checked: Sequence[Checked]) -> str:
    """Return the mismatches, with the names of all environments that share the same ones."""
    groups = grouped(((stack.name, mismatches), env.name) for env, stack, mismatches in checked)
    lines = []
    for (stack_name, mismatches), names in groups.items():
        count = counted(len(mismatches), "mismatch") if mismatches else "no mismatch"
        lines += [f"{', '.join(names)}: {count} (looked at as stack '{stack_name}')", *finding_lines(mismatches)]
    return "\n".join(lines)
