"""Place ranks on recorded topologies of public machines.

The facts are those of /sys/devices/system/cpu and node, as recorded in the test data of hwloc (open-mpi/hwloc,
tests/hwloc/linux) and of lscpu (util-linux, tests/ts/lscpu/dumps); `source` names the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from orch_node.protocol.record import number_ranges
from orch_node.standalone.facts import topology

from orchestrator.load.records import validate
from orchestrator.model.cluster import lay_out
from orchestrator.model.facts import Facts
from tests.conftest import make_node
from tests.support.node_responses import make_reported_facts


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The topology of a machine. CPUs are lists as the kernel writes them; `0-12:4` is 0,4,8,12.

    Attributes:
        source: the recording.
        cores: the first hardware thread of each core.
        step: the distance between the hardware threads of a core.
        threads: the hardware threads of each core.
        numa: the CPUs of each NUMA node; empty if the kernel has no NUMA nodes.
        packages: the CPUs of each socket.
        core_ids: core_id of the cores, in the order of their first threads; repeated if there are more cores.
        offline: the CPUs that are offline.
    """

    source: str
    cores: str
    step: int = 0
    threads: int = 2
    numa: Mapping[int, str] = field(default_factory=dict)
    packages: Mapping[int, str] = field(default_factory=dict)
    core_ids: tuple[int, ...] = tuple(range(128))
    offline: str = ""


XEON_6230_CORES = (0, 4, 1, 3, 2, 12, 8, 11, 9, 10, 16, 20, 17, 19, 18, 28, 24, 27, 25, 26)
MACHINES = {
    "epyc-7451": Machine(
        source="lscpu x86_64-epyc_7451: 2 sockets with 4 NUMA nodes each, SMT",
        cores="0-47",
        step=48,
        numa={node: f"{node * 6}-{node * 6 + 5},{node * 6 + 48}-{node * 6 + 53}" for node in range(8)},
        packages={0: "0-23,48-71", 1: "24-47,72-95"},
        core_ids=(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 20, 21, 22, 24, 25, 26, 28, 29, 30),
    ),
    "xeon-4108": Machine(
        source="hwloc 32intel64-2p8co2t+8ve: 2 sockets, SMT",
        cores="0-15",
        step=16,
        numa={0: "0-7,16-23", 1: "8-15,24-31"},
        packages={0: "0-7,16-23", 1: "8-15,24-31"},
        core_ids=tuple(range(8)),
    ),
    "xeon-6230-snc": Machine(
        source="hwloc memorysidecaches: 2 sockets with 2 sub-NUMA clusters each, SMT, numbered in turn",
        cores="0-39",
        step=40,
        numa={node: f"{node}-{node + 76}:4" for node in range(4)},
        packages={0: "0-78:2", 1: "1-79:2"},
        core_ids=tuple(XEON_6230_CORES[index // 2] for index in range(40)),
    ),
    "xeon-offline": Machine(
        source="hwloc 16em64t-4s2c2t-offlines: 4 sockets, SMT, some threads offline, no NUMA nodes",
        cores="0-7",
        step=8,
        packages={0: "0-12:4", 1: "1-13:4", 2: "2-14:4", 3: "3-15:4"},
        core_ids=(0, 0, 0, 0, 1, 1, 1, 1),
        offline="2,5,13-14",
    ),
    "opteron-cpusets": Machine(
        source="hwloc 16amd64-8n2c-cpusets: 8 sockets of 2 cores, one offline; its cpuset is 0-6,12-15",
        cores="0-15",
        threads=1,
        numa={node: f"{node * 2}-{node * 2 + 1}" for node in range(8)},
        packages={node: f"{node * 2}-{node * 2 + 1}" for node in range(8)},
        core_ids=(0, 1),
        offline="4",
    ),
    "milk-v-pioneer": Machine(
        source="lscpu rv64-milkvpioneer: RISC-V, each cluster of 4 numbers its cores from 0",
        cores="0-63",
        threads=1,
        numa={0: "0-7,16-23", 1: "8-15,24-31", 2: "32-39,48-55", 3: "40-47,56-63"},
        core_ids=(0, 1, 2, 3),
    ),
    "power-smt4": Machine(
        source="hwloc 256ppc-8n8s4t: 8 NUMA nodes with gaps in their numbers, SMT of 4 threads, no sockets",
        cores="0-252:4",
        step=1,
        threads=4,
        numa={node: f"{index * 32}-{index * 32 + 31}" for index, node in enumerate((0, 1, 4, 5, 8, 9, 12, 13))},
        packages={-1: "0-255"},
        core_ids=tuple(range(0, 256, 4)),
    ),
}
# A row has the ranks, the cores of each, the cores that no rank uses, the CPUs of the first and the last rank, and the
# NUMA nodes of each rank. The cpusets of the Xeon 4108, whose sockets have the CPUs 0-7,16-23 and 8-15,24-31, are those
# of Slurm for four cores (packed on a socket; in turn on both), of cgroups that begin in the middle of a socket, of PBS
# for a NUMA node, and of a site that keeps cores for the system. `0-47` and `16-31` have one thread of each core.
PLACEMENTS = """
machine          cpuset               --ppn  ranks  cores  unused  first           last            NUMA nodes
epyc-7451        all                  auto   8      6      0       0-5             42-47           0 1 2 3 4 5 6 7
epyc-7451        24-47,72-95          auto   4      6      0       24-29           42-47           4 5 6 7
epyc-7451        all                  2      2      24     0       0-23            24-47           0+1+2+3 4+5+6+7
xeon-4108        2-5,18-21            auto   1      4      0       2-5             2-5             0
xeon-4108        0-1,8-9,16-17,24-25  auto   2      2      0       0-1             8-9             0 1
xeon-4108        6-11,22-27           auto   2      3      0       6-8             9-11            0+1 1
xeon-4108        16-31                auto   2      8      0       16-23           24-31           0 1
xeon-4108        1-15,17-31           auto   2      7      1       1-7             8-14            0 1
xeon-4108        all                  3      3      5      1       0-4             10-14           0 0+1 1
xeon-6230-snc    all                  auto   4      10     0       0-36:4          3-39:4          0 2 1 3
xeon-6230-snc    all                  8      8      5      0       0-16:4          23-39:4         0 0 2 2 1 1 3 3
xeon-offline     all                  auto   1      7      0       0-1,3-4,6-7,10  0-1,3-4,6-7,10  0
xeon-offline     all                  2      2      3      1       0-1,4           3,6,10          0 0
opteron-cpusets  0-6,12-15            auto   4      2      2       0-1             14-15           0 1 6 7
opteron-cpusets  0-6,12-15            2      2      5      0       0-3,5           6,12-15         0+1+2 3+6+7
milk-v-pioneer   all                  auto   4      16     0       0-7,16-23       40-47,56-63     0 1 2 3
power-smt4       all                  auto   8      8      0       0-28:4          224-252:4       0 1 4 5 8 9 12 13
power-smt4       4-29                 auto   1      7      0       4-28:4          4-28:4          0
"""


def parse_cpus(text: str) -> list[int]:
    """Return the CPUs of a list as the kernel writes it, with an optional step."""
    cpus: list[int] = []
    for part in text.split(",") if text else ():
        numbers, _, step = part.partition(":")
        first, _, last = numbers.partition("-")
        cpus += range(int(first), int(last or first) + 1, int(step or 1))
    return cpus


def write_machine(machine: Machine, root: Path) -> list[int]:
    """Write the files of a machine's CPUs below ROOT/sys; return the CPUs that are online."""
    numa_of = {cpu: node for node, cpus in machine.numa.items() for cpu in parse_cpus(cpus)}
    package_of = {cpu: package for package, cpus in machine.packages.items() for cpu in parse_cpus(cpus)}
    offline, online = set(parse_cpus(machine.offline)), []
    for index, first in enumerate(parse_cpus(machine.cores)):
        siblings = [cpu for thread in range(machine.threads) if (cpu := first + thread * machine.step) not in offline]
        values = {
            "core_id": machine.core_ids[index % len(machine.core_ids)],
            "physical_package_id": package_of.get(first, 0),
            "thread_siblings_list": number_ranges(siblings),
        }
        for cpu in siblings:
            folder = root / f"sys/devices/system/cpu/cpu{cpu}"
            (folder / "topology").mkdir(parents=True)
            for name, value in values.items():
                (folder / "topology" / name).write_text(f"{value}\n")
            if cpu in numa_of:
                (folder / f"node{numa_of[cpu]}").mkdir()
        online += siblings
    return online


def describe_cpus(cpus: tuple[int, ...]) -> str:
    """Return CPUs as a list of the kernel, or as FIRST-LAST:STEP."""
    steps = {after - before for before, after in pairwise(sorted(cpus))}
    return f"{min(cpus)}-{max(cpus)}:{steps.pop()}" if len(steps) == 1 and steps != {1} else number_ranges(cpus)


def place(name: str, cpuset: str, ppn: str, root: Path) -> list[str]:
    """Return the columns of a row of PLACEMENTS."""
    online = write_machine(MACHINES[name], root)
    allowed = online if cpuset == "all" else [cpu for cpu in parse_cpus(cpuset) if cpu in online]
    reported = make_reported_facts(cpus=[topology(cpu, root) for cpu in allowed])
    node = make_node(facts=validate(Facts, reported, name))
    ranks = lay_out((node,), None if ppn == "auto" else int(ppn)).rank_places
    numa_of = {cpu: core.numa for core in node.facts.cores for cpu in core.cpus}
    numa = ("+".join(map(str, dict.fromkeys(numa_of[cpu] for cpu in rank.cpus))) for rank in ranks)
    first, last = describe_cpus(ranks[0].cpus), describe_cpus(ranks[-1].cpus)
    idle = len(node.facts.cores) - sum(len(rank.cpus) for rank in ranks)
    return [name, cpuset, ppn, *map(str, (len(ranks), ranks[0].threads, idle)), first, last, *numa]


def test_ranks_are_placed_as_the_table_shows(tmp_path: Path) -> None:
    for row in PLACEMENTS.strip().splitlines()[1:]:
        name, cpuset, ppn = row.split()[:3]
        assert place(name, cpuset, ppn, tmp_path / f"{name}-{cpuset}-{ppn}") == row.split()
