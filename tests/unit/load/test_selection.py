"""The nodes that --nodes and --exclude select; Ansible matches the patterns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import PlanError, RequestError
from orchestrator.load.clusters import select
from orchestrator.load.inventory import read_listing
from orchestrator.model.cluster import Selection
from orchestrator.model.hosts import parse_nodes

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
HOSTS = ("node1", "node2", "node3", "node4", "fat1", "node10", "node11", "node12")
SLOW = HOSTS[5:]


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield an inventory with a cache, so that Ansible is queried once for the hosts and once for each pattern."""
    folder = tmp_path_factory.mktemp("selection")
    path = folder / "lab.yml"
    path.write_text(INVENTORY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield path


def choose(inventory: Path, nodes: str | None, exclude: str | None = None, spares: int = 0) -> Selection:
    return select(
        inventory, read_listing(inventory), nodes=parse_nodes(nodes) if nodes else None, exclude=exclude, spares=spares
    )


def test_spare_nodes_follow_a_number_of_nodes_or_are_the_last_selected_ones(inventory: Path) -> None:
    for nodes, hosts, spares in (
        ("2", HOSTS[:2], HOSTS[2:4]),  # number
        ("slow", SLOW[:1], SLOW[1:]),  # pattern
        (None, HOSTS[:-2], HOSTS[-2:]),  # all
    ):
        selection = choose(inventory, nodes, spares=2)
        assert (selection.hosts, selection.spares) == (hosts, spares)


def test_pattern_selects_hosts(inventory: Path) -> None:
    for nodes, exclude, hosts in (
        (None, None, HOSTS),
        ("4", "node2", ("node1", "node3", "node4", "fat1")),
        (None, "slow,node[1-2]", ("node3", "node4", "fat1")),
        ("node[1-3],node12", None, ("node1", "node2", "node3", "node12")),
        ("slow[0-1]", None, ("node10", "node11")),
        ("fast:!big", None, HOSTS[:4]),
        ("all", "fast", SLOW),
    ):
        assert choose(inventory, nodes, exclude).hosts == hosts
        assert choose(inventory, nodes, exclude).hosts == hosts, "the cached result is the same"


def test_changed_inventory_is_matched_again(tmp_path: Path) -> None:
    inventory = tmp_path / "lab.yml"
    inventory.write_text(INVENTORY)
    assert len(choose(inventory, "slow").hosts) == 3
    inventory.write_text(INVENTORY.replace("node12: {}", "node12: {}, node13: {}"))
    assert len(choose(inventory, "slow").hosts) == 4


def test_impossible_number_of_nodes_is_rejected(inventory: Path) -> None:
    with pytest.raises(PlanError, match="--nodes 9, but cluster 'lab' has 8 nodes"):
        choose(inventory, "9")
    with pytest.raises(PlanError, match="--nodes 0"):
        choose(inventory, "0")
    with pytest.raises(PlanError, match="has 3 nodes to choose from"):
        choose(inventory, "4", "fast")
    with pytest.raises(PlanError, match="--nodes 10"):
        choose(inventory, "7", spares=3)
    with pytest.raises(RequestError, match="leaves none of 3 nodes"):
        choose(inventory, "slow", spares=3)


def test_part_of_a_pattern_that_matches_no_host_is_named(inventory: Path) -> None:
    with pytest.raises(RequestError, match="--nodes node1,nodd2: nodd2 matches no host") as exc_info:
        choose(inventory, "node1,nodd2")
    assert exc_info.value.hint == "Did you mean 'node2'?"
    for nodes in ("node[4-10]", "localhost"):
        with pytest.raises(RequestError, match="matches no host"):
            choose(inventory, nodes)
    with pytest.raises(RequestError, match="--exclude node99: node99 matches no host"):
        choose(inventory, "2", "node99")
    with pytest.raises(RequestError, match="--nodes slow --exclude all selects none of 8 hosts"):
        choose(inventory, "slow", "all")


def test_pattern_is_matched_without_a_home_directory_and_a_configuration_in_the_current_folder(
    inventory: Path, tmp_path: Path
) -> None:
    """Isolate Ansible, which reads its configuration also as a library of this process."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 77\n")
    program = (
        "import sys; from pathlib import Path;"
        "from orchestrator.load.inventory import read_listing;"
        "from orchestrator.load.clusters import select; source = Path(sys.argv[1]);"
        "from orchestrator.model.hosts import NodePattern;"
        "print(select(source, read_listing(source), nodes=NodePattern('node[3-4]'), exclude=None).hosts);"
        "from ansible import constants; print(constants.DEFAULT_FORKS)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_HOME"}
    environment |= {"HOME": "/proc/none", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program, str(inventory)]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "('node3', 'node4')\n5\n", result.stderr  # 5 is Ansible's own default
