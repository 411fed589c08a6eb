"""Check the packages of a user's Python against what a run needs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.targets.ssh.user_python import check_equal, with_facts
from tests.conftest import make_facts, make_node

STACK = load.stack("current")
PYTHON = "/opt/conda/bin/python"
BINDINGS = {"oneccl-bind-pt": "2.13.0+orch.10"}
NODE = make_node(facts=replace(make_facts(), packages={**STACK.requirements}))


def make_user_node(packages: dict[str, str], *, python: str = "3.11.9", ccl: bool = True, node: Node = NODE) -> Node:
    facts = replace(make_facts(), packages=packages, python=python, mpi={})
    return with_facts(node, facts, PYTHON, STACK, needs_ccl=ccl)


def test_bindings_of_the_stack_are_added_if_needed() -> None:
    for packages, ccl, folder in (
        ({}, True, "/venv/lib/python3.11/site-packages"),  # none
        (BINDINGS, True, ""),  # own bindings
        ({}, False, ""),  # gloo
    ):
        node = make_user_node({"torch": "2.13.1", **packages}, ccl=ccl)
        assert node.user_python.bindings == folder
        assert (node.python, node.ranks_python, node.facts.mpi) == (NODE.python, PYTHON, NODE.facts.mpi)


def test_unfit_interpreter_is_refused() -> None:
    for packages, python, message, hint in (
        ({}, "3.11.2", "has no torch", "Install it there"),
        ({"torch": "2.13.0"}, "3.12.1", "ccl none; those of stack 'current' are 2.13.0+orch", "--backend gloo"),
        ({"torch": "2.8.0"}, "3.11.2", "torch 2.8.0, Python 3.11.2", "--backend gloo"),
        ({"torch": "2.8.0", **BINDINGS}, "3.11.2", "the bindings for ccl 2.13.0+orch.10", "--backend gloo"),
    ):
        with pytest.raises(PlanError, match=re.escape(message)) as exc_info:
            make_user_node(packages, python=python)
        assert exc_info.value.message.startswith(f"node0: {PYTHON}")
        assert hint in exc_info.value.hint


def test_different_packages_of_nodes_are_named() -> None:
    first, second = ({"torch": "2.13.0+cpu", "pip": "1"}, {"torch": "2.13.0+cu130", "pip": "2"})
    check_equal([make_user_node(first), make_user_node(second)], PYTHON)
    unequal_nodes = [make_user_node(first), replace(make_user_node({**second, "einops": "0.8"}), name="node1")]
    with pytest.raises(PlanError, match=re.escape("einops is missing on node0 and 0.8 on node1.")):
        check_equal(unequal_nodes, PYTHON)


def test_recipe_needs_the_packages_of_the_stack_and_a_script_only_torch() -> None:
    packages = make_user_node({"torch": "2.13.1+cpu"}).facts.packages
    recipe, script = (
        STACK.for_user_python(PYTHON, packages, own_script=own_script).requirements for own_script in (False, True)
    )
    assert {"torch", "transformers"} <= set(recipe)
    assert script == {"torch": "2.13.1", **BINDINGS}
