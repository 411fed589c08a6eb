"""The nodes that --nodes and --exclude select; Ansible matches the patterns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import PlanError, RequestError, did_you_mean
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


def test_impossible_number_of_nodes_or_pattern_without_a_host_is_rejected(inventory: Path) -> None:
    for nodes, exclude, spares, error, message in (
        ("9", None, 0, PlanError, "--nodes 9, but cluster 'lab' has 8 nodes"),
        ("0", None, 0, PlanError, "--nodes 0"),
        ("4", "fast", 0, PlanError, "has 3 nodes to choose from"),
        ("7", None, 3, PlanError, "--nodes 10"),
        ("slow", None, 3, RequestError, "leaves none of 3 nodes"),
        ("node[4-10]", None, 0, RequestError, "matches no host"),
        ("localhost", None, 0, RequestError, "matches no host"),
        ("2", "node99", 0, RequestError, "--exclude node99: node99 matches no host"),
        ("slow", "all", 0, RequestError, "--nodes slow --exclude all selects none of 8 hosts"),
        ("node1,nodd2", None, 0, RequestError, "--nodes node1,nodd2: nodd2 matches no host"),
    ):
        with pytest.raises(error, match=message) as exc_info:
            choose(inventory, nodes, exclude, spares)
    assert exc_info.value.hint == "Did you mean 'node2'?"
    assert did_you_mean("node7", ["node07", "node47", "node70"]) == "Did you mean 'node07'?"


def test_pattern_is_matched_without_ansible_cfg_of_the_folder(inventory: Path, tmp_path: Path) -> None:
    """Isolate Ansible, which reads its configuration also as a library of this process."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 77\n")
    program = (
        "import sys; from pathlib import Path;"
        "from orchestrator.load.inventory import read_listing;"
        "from orchestrator.load.clusters import select; source = Path(sys.argv[1]);"
        "print(select(source, read_listing(source), nodes='node[3-4]', exclude=None).hosts);"
        "from ansible import constants; print(constants.DEFAULT_FORKS)"
    )
    environment = {**os.environ, "HOME": "/proc/none", "XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, str(inventory)]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "('node3', 'node4')\n5\n", result.stderr  # 5 is Ansible's own default
