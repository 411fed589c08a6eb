"""The patterns of --nodes and --exclude, matched by the real Ansible."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import PlanError, RequestError
from orchestrator.load.inventory import read_listing
from orchestrator.load.selection import select
from orchestrator.model.cluster import Selection

INVENTORY = """
all:
  children:
    fast:
      hosts:
        node[1:4]: {}
      children:
        big: {hosts: {fat1: {}}}
    slow:
      hosts: {node10: {}, node11: {}, node12: {}}
"""
ALL = ("node1", "node2", "node3", "node4", "fat1", "node10", "node11", "node12")


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield an inventory with a cache, so that Ansible is queried once for the hosts and once for each pattern."""
    folder = tmp_path_factory.mktemp("selection")
    path = folder / "lab.yml"
    path.write_text(INVENTORY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield path


def choose(inventory: Path, nodes: str | None, exclude: str | None = None) -> Selection:
    return select(inventory, read_listing(inventory), nodes=nodes, exclude=exclude)


@pytest.mark.parametrize(
    ("nodes", "hosts", "spares"),
    [("2", ALL[:2], ALL[2:4]), ("slow", ("node10",), ("node11", "node12")), (None, ALL[:-2], ALL[-2:])],
)
def test_spares_follow_a_number_or_are_the_last_of_what_was_named(
    inventory: Path, nodes: str | None, hosts: tuple[str, ...], spares: tuple[str, ...]
) -> None:
    selection = select(inventory, read_listing(inventory), nodes=nodes, exclude=None, spares=2)
    assert (selection.hosts, selection.spares) == (hosts, spares)


def test_more_spares_than_nodes_are_refused(inventory: Path) -> None:
    listing = read_listing(inventory)
    with pytest.raises(PlanError, match="--nodes 10"):
        select(inventory, listing, nodes="7", exclude=None, spares=3)
    with pytest.raises(RequestError, match="leaves none of 3 nodes"):
        select(inventory, listing, nodes="slow", exclude=None, spares=3)


@pytest.mark.parametrize(
    ("nodes", "exclude", "hosts"),
    [
        (None, None, ALL),
        ("4", None, ALL[:4]),
        ("4", "node2", ("node1", "node3", "node4", "fat1")),
        (None, "slow,node[1-2]", ("node3", "node4", "fat1")),
        ("node3", None, ("node3",)),
        ("node3,node1", None, ("node3", "node1")),
        ("node[1-3],node12", None, ("node1", "node2", "node3", "node12")),
        ("node[4-10]", None, None),
        ("node[10-12]", None, ("node10", "node11", "node12")),
        ("slow", None, ("node10", "node11", "node12")),
        ("slow[0]", None, ("node10",)),
        ("slow[1:2]", None, ("node11", "node12")),
        ("slow[0-1]", None, ("node10", "node11")),
        ("fast:!big", None, ("node1", "node2", "node3", "node4")),
        ("fast:&big", None, ("fat1",)),
        ("~node1[01]", None, ("node10", "node11")),
        ("node?", None, ("node1", "node2", "node3", "node4")),
        ("all", "fast", ("node10", "node11", "node12")),
        ("localhost", None, None),
    ],
)
def test_what_is_chosen(inventory: Path, nodes: str | None, exclude: str | None, hosts: tuple[str, ...] | None) -> None:
    if hosts is None:
        with pytest.raises(RequestError, match="matches no host"):
            choose(inventory, nodes, exclude)
        return
    assert choose(inventory, nodes, exclude).hosts == hosts
    assert choose(inventory, nodes, exclude).hosts == hosts, "the remembered answer is the same"


def test_the_reason_says_how(inventory: Path) -> None:
    assert choose(inventory, None).reason == "all of cluster 'lab'"
    assert choose(inventory, "2").reason == "the first of 8 in cluster 'lab'"
    assert choose(inventory, "fast", "fat1").reason == "'fast' of cluster 'lab' without fat1"


def test_an_answer_is_forgotten_when_the_inventory_changes(tmp_path: Path) -> None:
    inventory = tmp_path / "lab.yml"
    inventory.write_text(INVENTORY)
    assert len(choose(inventory, "slow").hosts) == 3
    inventory.write_text(INVENTORY.replace("node12: {}", "node12: {}, node13: {}"))
    assert len(choose(inventory, "slow").hosts) == 4


def test_more_nodes_than_there_are(inventory: Path) -> None:
    with pytest.raises(PlanError, match="--nodes 9, but cluster 'lab' has 8 nodes"):
        choose(inventory, "9")
    with pytest.raises(PlanError, match="--nodes 0"):
        choose(inventory, "0")
    with pytest.raises(PlanError, match="has 3 nodes to choose from"):
        choose(inventory, "4", "fast")


def test_a_part_that_matches_nothing_is_named(inventory: Path) -> None:
    with pytest.raises(RequestError, match="--nodes node1,nodd2: nodd2 matches no host") as caught:
        choose(inventory, "node1,nodd2")
    assert caught.value.hint == "Did you mean 'node2'?"
    with pytest.raises(RequestError, match="--exclude node99: node99 matches no host"):
        choose(inventory, "2", "node99")


def test_nothing_left(inventory: Path) -> None:
    with pytest.raises(RequestError, match="--nodes slow --exclude all selects none of the 8 hosts"):
        choose(inventory, "slow", "all")


def test_a_pattern_is_matched_without_a_home(inventory: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from orchestrator.load.inventory import read_listing;"
        "from orchestrator.load.selection import select; source = Path(sys.argv[1]);"
        "print(select(source, read_listing(source), nodes='node[3-4]', exclude=None).hosts)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(inventory)],
        env=environment | {"HOME": "/proc/none", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "('node3', 'node4')\n", done.stderr
