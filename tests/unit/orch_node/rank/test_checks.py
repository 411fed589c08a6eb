"""Two torch versions match if their public parts agree; different builds are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.layout import NodeEntry, parse
from orch_node.rank.checks import RankError, check_image_packages, check_preload, check_torch
from orch_node.standalone import facts as node_facts

from orchestrator.model.cluster import lay_out
from orchestrator.model.facts import Facts
from orchestrator.model.process_group import GLOO
from orchestrator.planning.run_files import layout_json
from orchestrator.stacks.stack import same_version
from tests.conftest import make_facts, make_node, make_stack

SPEC = ContainerSpec(image="team/torch:3", start="rank", python="python3", preload=(), processes={}, options=())
SAME_VERSIONS = [
    ("2.13.0", "2.13.0"),
    ("2.13.0+cu130", "2.13.0"),
    ("2.13.0+cpu", "2.13.0+cu130"),
    ("2.14.1+dfsg", "2.14.1"),
    ("2.13.0a0+git", "2.13.0a0+git1a2b3c4"),
]
DIFFERENT_VERSIONS = [
    ("2.12.0", "2.13.0"),
    ("2.13.0a0+git", "2.13.0"),
    ("2.13.0.post1", "2.13.0"),
    ("2.14.1+dfsg", "2.14.0"),
]


def test_packages_that_an_image_lacks_are_named() -> None:
    check_image_packages("pytest packaging", SPEC)
    with pytest.raises(RankError, match=r"image team/torch:3 does not have no-such-1 and no-such-2, which"):
        check_image_packages("no-such-1 pytest no-such-2", SPEC)


def facts_with_torch(version: str) -> Facts:
    return replace(make_facts(), packages={"torch": version})


def make_entry(version: str, **node: Any) -> NodeEntry:
    """Return the layout's entry of a node with this torch."""
    nodes = (replace(make_node(facts=facts_with_torch(version)), **node),)
    return parse(layout_json(lay_out(nodes, 1), GLOO, nodes, (), ())).nodes[0]


def test_another_build_is_the_same_torch_for_a_rank_and_for_its_stack() -> None:
    for installed, planned in SAME_VERSIONS:
        check_torch(make_entry(planned), installed, None)
        check_torch(make_entry(installed), planned, None)
    for installed, required in (*SAME_VERSIONS[:2], SAME_VERSIONS[3]):
        replace(make_stack(), requirements={"torch": required}).check(make_node(facts=facts_with_torch(installed)))


def test_another_version_is_not_the_planned_torch() -> None:
    for installed, planned in DIFFERENT_VERSIONS:
        with pytest.raises(RankError, match=r"^node0 has torch .*, and was planned with "):
            check_torch(make_entry(planned), installed, None)
        assert not same_version(installed, planned)


def test_required_build_must_be_installed() -> None:
    for installed, required, same in (
        ("2.13.0+cpu", "2.13.0+cpu", True),  # same build
        ("2.13.0+cu130", "2.13.0+cpu", False),  # another build
        ("2.13", "2.13.0", True),  # short
        ("2.14.1+dfsg-1", "2.14.1+dfsg.1", True),  # spelling
        (None, "2.13.0", False),  # not installed
    ):
        assert same_version(installed, required) is same


def test_probe_reads_the_build_without_an_import(tmp_path: Path) -> None:
    """Read torch.__version__, which has the build that the metadata of PyPI's wheel lacks (2.13.0+cu130)."""
    prefix = tmp_path / "a [b] c"
    packages = prefix / "lib" / "python3.11" / "site-packages"
    (packages / "torch-2.13.0.dist-info").mkdir(parents=True)
    (packages / "torch").mkdir()
    for text, build in (
        ("from typing import Optional\n__all__ = []\n__version__ = '2.13.0+cu130'\n", "+cu130"),  # assignment
        ('__version__: str = "2.13.0+cpu"\ndebug = False\n', "+cpu"),  # annotation
        ("debug = False\n", ""),  # no version
    ):
        (packages / "torch" / "version.py").write_text(text)
        assert node_facts.packages(prefix)["torch"] == f"2.13.0{build}"


def test_check_preload_explains_why_a_library_is_not_loaded(tmp_path: Path) -> None:
    for name, reason in (
        ("missing.so", "cannot open shared object file"),
        ("text.so", "invalid ELF header|file too short"),  # no-library
    ):
        if name != "missing.so":
            (tmp_path / name).write_text("not a library" * 100)
        with pytest.raises(RankError, match=rf"is not loaded: .*{reason}.*: `orch setup`"):
            check_preload(str(tmp_path / name), "`orch setup`")
