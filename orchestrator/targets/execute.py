"""Do steps of a plan through connections to its nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any

from orch_node.content_store import ABSENT, all_files
from orch_node.protocol import files, values
from orch_node.protocol.node_names import fold_by_text
from orch_node.protocol.record import RunNode
from orch_node.reach import shell_command
from orch_node.standalone import receive_files

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.files import pack_files, source_files, write_private
from orchestrator.model.printable import CommandResult, one_line
from orchestrator.planning import plan
from orchestrator.targets.connections.connection import Result, Ssh
from orchestrator.targets.connections.local import Local

MAX_PARALLEL_NODES = 64
CHECK_SECONDS = 60.0  # time limit for a Python to start, from a slow disk
MISSING_IMPORTS = 1  # exit code of that check
STORE_SECONDS = 600.0  # time limit for a node to copy a stored folder, on a slow disk
STORE_HINT = (
    "Check whether node0 reaches the other nodes over SSH, and whether the disks have free space. After an update of "
    "orch, run `orch provision` again."
)
ATTEMPT_HINT = "`orch runs` shows the state of the run; `orch stop` ends its remaining processes."


Connection = Local | Ssh


def execute(steps: Iterable[plan.Step], connections: Mapping[str, Connection]) -> None:
    """Do steps in order, up to the first that fails.

    Args:
        steps: the steps, without those whose targets do them: the creation of objects, the submission of a script.
        connections: a connection to each node of the steps, by the name of the node.

    Raises:
        ExecuteError: if a step fails.
        RequestError: if a module is missing that a script imports.
    """
    for step in steps:
        try:
            execute_step(step, connections)
        except OSError as error:  # of this machine; connections translate those of nodes
            path = error.filename or gettempdir()  # temporary files have no names
            raise ExecuteError.about("step-here", title=step.title(), path=path, error=error) from None


def execute_step(step: plan.Step, connections: Mapping[str, Connection]) -> None:
    """Do a step; raise OSError if this machine cannot read or write a file, and other errors like execute()."""
    match step:
        case plan.PutFile(nodes=(), path=path, content=content):
            write_private(Path(path), content)
        case plan.PutFile() | plan.SendFile() | plan.RunProgram():
            on_all(step.nodes, connections, functools.partial(do_on_node, step, connections))
        case plan.SendFolder():
            source, head = Path(step.source), {"root": step.path, "receiver": step.unpack()}
            node = step.node.node
            send_folder(connections[node], source, source_files(source), "python3", [node], head)
        case plan.StoreFolder():
            store(step, connections)
        case plan.CheckImports(command=command, imports=imports):
            result = connections[step.node.node].capture(command, seconds=CHECK_SECONDS)
            if result.code not in (0, MISSING_IMPORTS):
                reason = one_line(result.err.strip()) or f"exit code {result.code}"
                raise ExecuteError.about("unchecked-imports", node=step.node.node, reason=reason)
            imports.check(result.out.split())
        case plan.StartRun(command=command, run_dir=run_dir):
            connections[step.node.node].start(command, f"{run_dir}/{files.SUPERVISOR_LOG}")
        case _:
            raise NotImplementedError(step.title())


def do_on_node(
    step: plan.PutFile | plan.SendFile | plan.RunProgram, connections: Mapping[str, Connection], node: RunNode
) -> None:
    """Do a step on one of its nodes; raise ExecuteError if that fails."""
    connection = connections[node.node]
    if not isinstance(step, plan.RunProgram):
        connection.put(step.path, step.content if isinstance(step, plan.PutFile) else Path(step.source).read_bytes())
        return
    try:
        result = connection.capture(step.command, seconds=step.seconds)
    except ExecuteError as error:
        raise ExecuteError(error.message, hint=step.hint or error.hint) from None
    check_result(result, node.node, step.hint or ATTEMPT_HINT)


def check_result(result: CommandResult, node: str, hint: str) -> None:
    """Raise ExecuteError with what a program has printed on a node if it has failed."""
    if result.code != 0:
        reason = result.err.strip().removesuffix(".") or f"exit code {result.code}"
        raise ExecuteError(f"{node}: {reason}.", hint=hint)


def store(step: plan.StoreFolder, connections: Mapping[str, Connection]) -> None:
    """Ask all nodes for a folder of the store; send it to those that lack it, from a node that has it if there is one.

    Raises:
        ExecuteError: if a node cannot store or copy it.
        OSError: if a file cannot be read.
    """
    absent: set[str] = set()

    def use(node: RunNode) -> None:
        result = connections[node.node].capture(step.command("use"), seconds=STORE_SECONDS)
        if result.code == ABSENT:
            absent.add(node.node)
        else:
            check_result(result, node.node, STORE_HINT)

    on_all(step.nodes, connections, use)
    receivers = [node.node for node in step.nodes if node.node in absent]
    holders = [node.node for node in step.nodes if node.node not in absent][:1]
    source, (python, program) = Path(step.source), step.node_program
    root = str(PurePosixPath(program).parent.parent)
    head = {"root": root, "receiver": step.command("receive"), "sender": step.command("send"), "stored": bool(holders)}
    if receivers:
        names = () if holders else step.files or all_files(source)
        nodes = [*holders, *receivers]
        send_folder(connections[nodes[0]], source, [source / name for name in names], python, nodes, head)


def send_folder(
    connection: Connection, folder: Path, paths: Sequence[Path], python: str, nodes: Sequence[str], head: dict[str, Any]
) -> None:
    """Send files below a folder to the first of several nodes, which passes them on to the others.

    Args:
        connection: the connection to the first node.
        folder: the folder.
        paths: the files; none if the first node sends its own folder (`stored`).
        python: the interpreter on the nodes.
        nodes: the names of the nodes.
        head: what receive_files.py gets besides: its root, and the commands that receive and send an archive.

    Raises:
        ExecuteError: if a node does not get it.
    """
    program = receive_files.command(python)
    further_nodes = [(name, shell_command(program)) for name in nodes[1:]]
    beginning = receive_files.beginning({**head, "nodes": further_nodes})
    hint = STORE_HINT if further_nodes else f"Check on {nodes[0]} whether you may write there, and the disk space (df)."
    with packed(folder, paths, beginning) as archive:
        result = connection.capture(program, seconds=STORE_SECONDS, source=archive)
    check_result(result, nodes[0], hint)
    try:
        problems = values.check(values.loads(result.out, "its response"), "its response", dict)
    except values.ProtocolError as error:
        raise ExecuteError(f"{nodes[0]}: {error}", hint=hint) from None
    reasons = {name: one_line(str(problems.get(name) or "")) for name in ("", *nodes[1:])}
    failed = {name or nodes[0]: reason for name, reason in reasons.items() if reason}
    if head.get("stored") and nodes[0] in failed:
        failed = dict.fromkeys(nodes[1:], failed[nodes[0]])
    if failed or None in problems.values():
        reason = "; ".join(f"{names}: {reason}" for names, reason in fold_by_text(failed))
        raise ExecuteError(f"{reason.removesuffix('.')}.", hint=hint)


@contextmanager
def packed(folder: Path, paths: Sequence[Path], beginning: bytes = b"") -> Iterator[Path]:
    """Yield a temporary file with an archive of files below a folder, after other bytes.

    Raises:
        OSError: if a file cannot be read, or the archive cannot be written.
    """
    with NamedTemporaryFile(prefix="orch-", suffix=".tar.gz") as archive:
        archive.write(beginning)
        pack_files(archive, folder, paths)
        archive.flush()
        yield Path(archive.name)


def on_all(nodes: Sequence[RunNode], connections: Mapping[str, Connection], action: Callable[[RunNode], None]) -> None:
    """Call an action for all nodes in parallel; if none of the first ones can be reached, leave the others out.

    Raises:
        ExecuteError: if it fails for any node; the message groups the nodes by their reason.
        KeyboardInterrupt: if Ctrl-C is pressed; the connections are closed, so that no action continues.
    """

    def close() -> None:
        for node in nodes:
            connections[node.node].close()

    first, remaining, left_out = nodes[:MAX_PARALLEL_NODES], nodes[MAX_PARALLEL_NODES:], ""
    errors = errors_in(on_each(first, action, interrupt=close))
    if remaining and sum(isinstance(error, ConnectionLost) for error in errors.values()) == len(first):
        left_out = f"; the other {len(remaining)} nodes were left out"
    else:
        errors |= errors_in(on_each(remaining, action, interrupt=close))
    if errors:
        reasons = fold_by_text({node: error.message.removesuffix(".") for node, error in errors.items()})
        message = "; ".join(reason for _, reason in reasons)
        raise ExecuteError(f"{message}{left_out}.", hint=next(iter(errors.values())).hint)


def on_each(
    nodes: Collection[RunNode],
    action: Callable[[RunNode], Result],
    *,
    threads: int = MAX_PARALLEL_NODES,
    interrupt: Callable[[], object] = lambda: None,
) -> dict[str, Result | ExecuteError]:
    """Call an action for all nodes in parallel; return the result or the error of each, in their order.

    Args:
        nodes: the nodes.
        action: called with each node.
        threads: the number of nodes at the same time.
        interrupt: called if Ctrl-C is pressed; ends the actions, for which this function waits.
    """

    def attempt(node: RunNode) -> Result | ExecuteError:
        try:
            return action(node)
        except ExecuteError as error:
            return error

    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            return dict(zip((node.node for node in nodes), pool.map(attempt, nodes), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupt()
            raise


def errors_in(results: Mapping[str, Result | ExecuteError]) -> dict[str, ExecuteError]:
    """Return the errors among the results of nodes."""
    return {node: result for node, result in results.items() if isinstance(result, ExecuteError)}
