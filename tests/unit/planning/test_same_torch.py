"""Two torch versions match if their public parts agree; different builds are reported."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.layout import NodeEntry
from orch_node.rank import checks as node_rank_checks
from orch_node.standalone import facts as node_facts

from orchestrator.model.cluster import Facts, Node
from orchestrator.planning import hosts
from orchestrator.planning.run_files import node_entry
from orchestrator.stacks.stack import same_version
from tests.conftest import make_facts, make_node, make_stack

SPEC = ContainerSpec(image="team/torch:3", start="rank", python="python3", preload=(), processes={}, options=())
SAME = [
    ("2.13.0", "2.13.0"),
    ("2.13.0+cu130", "2.13.0"),
    ("2.13.0+cpu", "2.13.0"),
    ("2.13.0+cpu", "2.13.0+cu130"),
    ("2.14.1+dfsg", "2.14.1"),
    ("2.13.0a0+git", "2.13.0a0+git1a2b3c4"),
]
OTHER = [
    ("2.12.0", "2.13.0"),
    ("2.12.0+cpu", "2.13.0+cpu"),
    ("2.13.0a0+git", "2.13.0"),
    ("2.13.0.post1", "2.13.0"),
    ("2.14.1+dfsg", "2.14.0"),
]


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def with_torch(version: str) -> Facts:
    return replace(make_facts(), packages={"torch": version})


def entry(version: str, **of_node: Any) -> NodeEntry:
    return node_entry(replace(make_node(facts=with_torch(version)), **of_node), None)


@pytest.mark.parametrize(("found", "planned"), SAME)
def test_another_build_is_the_same_torch(found: str, planned: str) -> None:
    node_rank_checks.check_torch(entry(planned), found, None)
    node_rank_checks.check_torch(entry(found), planned, None)


@pytest.mark.parametrize(("found", "planned"), OTHER)
def test_another_version_is_not(found: str, planned: str) -> None:
    checks = node_rank_checks
    with pytest.raises(checks.RankError, match=r"^node0 has torch .*, and was planned with "):
        checks.check_torch(entry(planned), found, None)


@pytest.mark.parametrize(("found", "planned"), [*SAME[:3], SAME[4]])
def test_a_node_has_its_stack_whatever_the_build(found: str, planned: str) -> None:
    stack = replace(make_stack(), requirements={"torch": planned})
    stack.check(make_node(facts=with_torch(found)))


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        *((found, wanted, False) for found, wanted in OTHER),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("2.13", "2.13.0", True),
        ("2.14.1+dfsg-1", "2.14.1+dfsg.1", True),
        ("no version", "2.13.0", False),
        (None, "2.13.0", False),
    ],
)
def test_a_build_counts_where_it_is_asked_for(found: str | None, wanted: str, same: bool) -> None:
    assert same_version(found, wanted) is same


def installed(prefix: Path, metadata: str, text: str) -> Path:
    site = prefix / "lib" / "python3.11" / "site-packages"
    (site / f"torch-{metadata}.dist-info").mkdir(parents=True)
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text(text)
    return prefix


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("from typing import Optional\n__all__ = []\n__version__ = '2.13.0+cu130'\n", "cu130"),
        ('__version__: str = "2.13.0+cpu"\ndebug = False\n', "cpu"),
        ("debug = False\n", ""),
    ],
)
def test_the_probe_reads_the_build_without_an_import(tmp_path: Path, text: str, version: str) -> None:
    """Read torch.__version__, which has the build that the metadata of PyPI's wheel lacks (2.13.0+cu130)."""
    prefix = installed(tmp_path / "a [b] c", "2.13.0", text)
    result = node_facts.packages(prefix)["torch"]
    assert result == "2.13.0" + f"+{version}" * bool(version)


def test_builds_that_differ_between_nodes_are_told() -> None:
    versions = ("2.13.0+cpu", "2.13.0+cpu", "2.13.0+cu130")
    nodes = tuple(make_node(f"node{i}", with_torch(torch_version)) for i, torch_version in enumerate(versions))
    (decision,) = hosts.explain_torch(nodes)
    assert decision.value == "2.13.0+cpu on node0, node1; 2.13.0+cu130 on node2"
    assert hosts.explain_torch(nodes[:2]) == ()


REPAIRS = ["`orch setup`", "`orch provision`", "`orch provision` with --stack intel-2.8"]


@pytest.mark.parametrize("repair", REPAIRS)
def test_the_hint_is_what_helps_there(repair: str) -> None:
    checks = node_rank_checks
    with pytest.raises(checks.RankError, match=f"To repair it: {repair}"):
        checks.check_torch(entry("2.13.0", repair=repair), "2.12.0", None)
    with pytest.raises(checks.RankError, match=r"image team/torch:3 .* `orch image build`"):
        checks.check_torch(entry("2.13.0"), "2.12.0", SPEC)


def test_only_recorded_nodes_are_recorded_anew() -> None:
    checks = node_rank_checks
    for node, message in ((make_node(), "start it again"), (far(), "Run `orch provision`")):
        with pytest.raises(checks.RankError, match=message):
            checks.check_node(node_entry(node, None))


def far() -> Node:
    return make_node(via=("ssh", "node0"))
