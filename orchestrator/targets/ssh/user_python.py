"""Run the ranks on an interpreter of the user's on the nodes, after checking its packages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from orch_node.protocol.record import RunNode
from orch_node.standalone.facts import describe_differences
from packaging.version import InvalidVersion

from orchestrator import load
from orchestrator.errors import ExecuteError, PlanError
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.facts import Facts
from orchestrator.planning.request import TrainRequest
from orchestrator.stacks.stack import BINDINGS, TORCH, Stack, minor
from orchestrator.targets.execute import on_each
from orchestrator.targets.interpreter import PYTHON_HINT, REPAIR, path_of, query_interpreter, user_python
from orchestrator.targets.ssh.nodes import connection_to, write_ssh_config


def with_user_python(request: TrainRequest, cluster: Cluster) -> Cluster:
    """Return the nodes with the packages of --python.

    orch's own processes and MPI stay those of the stack.

    Raises:
        RequestError: if the interpreter does not exist, or the option is wrong.
        PlanError: if the nodes differ, or the interpreter does not have what the run needs.
        ExecuteError: if a node cannot be reached, or the interpreter does not run.
    """
    cluster.selected_nodes()  # orch's own processes need a provisioned node
    python = path_of(request, this_machine=all(node.local for node in cluster.nodes))
    stack = load.stack(request.stack)
    write_ssh_config(cluster)

    def query(host: RunNode) -> Facts:
        with closing(connection_to(host)) as connection:
            return query_interpreter(connection, host.node, python, PYTHON_HINT)

    results = on_each([node.run_node for node in cluster.nodes], query)
    needs_ccl = (request.backend or stack.backends[0]) == "ccl"
    nodes = []
    for node, facts in zip(cluster.nodes, results.values(), strict=True):
        if isinstance(facts, ExecuteError):
            raise facts
        nodes.append(with_facts(node, facts, python, stack, needs_ccl=needs_ccl))
    check_equal(nodes, python)
    return replace(cluster, nodes=tuple(nodes))


def with_facts(node: Node, facts: Facts, python: str, stack: Stack, *, needs_ccl: bool) -> Node:
    """Return the node with the packages of the user's Python.

    Raises:
        PlanError: if the node does not have the Python and MPI that orch uses, or if the user's Python has no torch, or
            no bindings for `ccl` although they are needed.
    """
    if not node.local:
        stack.for_processes().check(node)
    if TORCH not in facts.packages:
        raise PlanError(f"{node.name}: {python} has no torch.", hint="Install it there, or name another Python.")
    try:
        folder = bindings_folder(node, facts, python, stack) if needs_ccl else ""
    except InvalidVersion as error:
        raise PlanError.about("release-of-torch", node=node, python=python, error=error) from None
    added = {BINDINGS: node.facts.packages[BINDINGS]} if folder else {}
    return replace(
        node,
        facts=replace(
            node.facts,
            python=facts.python,
            packages={**facts.packages, **added},
            fingerprint=facts.fingerprint,
            libraries=facts.libraries,
            mpi={**facts.mpi, **node.facts.mpi},
        ),
        user_python=user_python(python, facts, folder, for_gpus=bool(node.facts.gpus)),
        repair=REPAIR.format(python),
    )


def bindings_folder(node: Node, facts: Facts, python: str, stack: Stack) -> str:
    """Return the folder of the stack's packages if its bindings for `ccl` fit the user's Python, which has none.

    Raises:
        PlanError: if the bindings of the user's Python or of the stack do not fit its torch.
    """
    user_bindings, bindings = facts.packages.get(BINDINGS), node.facts.packages.get(BINDINGS)
    torch = minor(facts.packages[TORCH])
    if stack.bindings is None or (user_bindings and minor(user_bindings) == torch):
        return ""  # without bindings in the stack, the choice of the backend reports it
    version = ".".join(node.facts.python.split(".")[:2])
    fits = bindings is not None and minor(bindings) == torch and facts.python.startswith(f"{version}.")
    if fits and stack.bindings.built_by == "orch" and not user_bindings:
        return f"{node.python.rpartition('/bin/')[0]}/lib/python{version}/site-packages"
    versions = (
        f"torch {facts.packages[TORCH]}, Python {facts.python} and the bindings for ccl {user_bindings or 'none'}"
    )
    of_stack = f"{bindings or 'none'} for Python {version}"
    raise PlanError.about(
        "bindings-for-python", node=node, python=python, versions=versions, stack=stack, of_stack=of_stack
    )


def check_equal(nodes: Sequence[Node], python: str) -> None:
    """Raise PlanError if the interpreters of nodes have different packages; builds of one torch may differ."""
    facts = {node.name: node.facts for node in nodes}
    builds = {name: fact.packages[TORCH].partition("+")[0] for name, fact in facts.items()}
    versions = {name: {**fact.packages, "Python": fact.python, TORCH: builds[name]} for name, fact in facts.items()}
    if differences := describe_differences(versions):
        raise PlanError.about("unequal-pythons", python=python, differences=differences)
