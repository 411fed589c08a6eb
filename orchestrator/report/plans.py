"""Plans as JSON, and their outline: what is decided, written and started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from orch_node.protocol.node_names import fold

from orchestrator.model.printable import counted, described_size, one_line
from orchestrator.model.secret_values import mask
from orchestrator.planning.manifest import as_yaml
from orchestrator.planning.plan import (
    SCRIPT,
    ApplyObjects,
    CheckImports,
    CopyFiles,
    Plan,
    PrepareAttempt,
    PutFile,
    PutLocalFile,
    SendFile,
    SendFolder,
    StartRun,
    Step,
    StoreFolder,
    SubmitScript,
)
from orchestrator.report.listing import SCHEMA


def outline(plan: Plan) -> str:
    """Return the decisions, the files with their sizes and the commands of a plan, without secrets.

    Its length does not depend on the number of nodes.
    """
    lines = [*plan.summary(), "", *(line for step in plan.steps for line in outline_step(step))]
    return mask("\n".join([*map(one_line, lines), "", "-o sh prints all files and commands in full."]), plan.secrets)


def outline_step(step: Step) -> Iterator[str]:
    """Yield a line about a step, and the options of a job script below it."""
    is_local = isinstance(step, SubmitScript) and not step.node.via
    nodes = f" on {fold(node.node for node in step.nodes)}" if step.nodes and not is_local else ""
    match step:
        case CheckImports():
            yield f"check the imports of {counted(len(step.imports.importers), 'file')}{nodes}"
        case PrepareAttempt():
            yield f"remove the files that report the end of the last attempt{nodes}"
        case StartRun(command=command):
            yield f"start{nodes}: {command.shell()}"
        case ApplyObjects(objects=objects):
            for item in objects:
                size = described_size(len(as_yaml((item,)).encode()))
                yield f"create {item['kind']} {item['metadata']['name']}: {size}"
        case SubmitScript(script=script, run_dir=run_dir, program=program):
            yield f"submit {run_dir}/{SCRIPT}{nodes}: {program}, {described_size(len(script.encode()))}"
            yield from (f"    {line}" for line in takewhile("#".__ne__, script.splitlines()[1:]))
        case _:
            yield outline_transfer(step, nodes)


def outline_transfer(step: PutFile | PutLocalFile | SendFile | SendFolder | StoreFolder | CopyFiles, nodes: str) -> str:
    """Return a line about files that are written or copied."""
    match step:
        case PutFile(path=path, content=content) | PutLocalFile(path=path, content=content):
            return f"write {path}{nodes}: {described_size(len(content.encode()))}"
        case SendFile(source=source, path=path):
            size = f": {described_size(Path(source).stat().st_size)}" if Path(source).is_file() else ""
            return f"copy {source} to {path}{nodes}{size}"
        case SendFolder(source=source, path=path):
            return f"copy {source} to {path}{nodes}"
        case StoreFolder(source=source, files=files, path=path, copy=copy):
            number = f", {counted(len(files), 'file')}," if files else ""
            return f"store {source}{number} in {path}{f' and copy it to {copy}' if copy else ''}{nodes}"
        case CopyFiles(source=source, files=files, path=path):
            return f"copy {source} to {path}: {counted(len(files), 'file')}"


def as_json(plan: Plan) -> str:
    """Return a plan with its decisions, layout, files and command as JSON."""
    files = {step.path: step.content for step in plan.steps if isinstance(step, PutFile)}
    start = next((step for step in plan.steps if isinstance(step, StartRun)), None)
    objects = [document for step in plan.steps if isinstance(step, ApplyObjects) for document in step.objects]
    scripts = any(isinstance(step, SubmitScript) for step in plan.steps)
    text = json.dumps(
        {
            "schema": SCHEMA,
            "kind": "plan",
            "run_id": plan.run.run_id,
            "run_dir": plan.run.run_dir,
            "decisions": [asdict(decision) for decision in plan.decisions],
            "layout": [asdict(placement) for placement in plan.layout.rank_places],
            "files": files,
            "command": {
                "argv": list(start.command.argv) if start else [],
                "env": dict(start.command.env) if start else {},
            },
            **({"objects": objects} if objects else {}),
            **({"script": plan.describe()} if scripts else {}),
        },
        indent=1,
    )
    return mask(text, plan.secrets)


def started_as_json(plan: Plan) -> str:
    """Return the id, the folder and the nodes of a started run as JSON."""
    head = {"schema": SCHEMA, "kind": "started", "run_id": plan.run.run_id, "run_dir": plan.run.run_dir}
    return json.dumps({**head, "nodes": [target.node for target in plan.run.nodes]}, indent=1)


def started(plan: Plan) -> str:
    """Return a line with the commands that follow or stop a started run."""
    return f"detached from {plan.run.run_id}: orch attach shows it, orch stop ends it"
