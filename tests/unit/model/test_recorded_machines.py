"""Place ranks on recorded topologies of public machines."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from orch_node.protocol.record import number_ranges
from orch_node.standalone.facts import topology

from orchestrator.files import tomllib
from orchestrator.load.records import validate
from orchestrator.model.cluster import lay_out
from orchestrator.model.facts import Facts
from tests.conftest import make_node
from tests.support.node_responses import make_reported_facts

DATA = tomllib.loads(Path(__file__).with_name("recorded_machines.toml").read_text())


def parse_cpus(text: str) -> list[int]:
    """Return the CPUs of a list as the kernel writes it, with an optional step."""
    cpus: list[int] = []
    for part in text.split(",") if text else ():
        numbers, _, step = part.partition(":")
        first, _, last = numbers.partition("-")
        cpus += range(int(first), int(last or first) + 1, int(step or 1))
    return cpus


def write_machine(machine: SimpleNamespace, root: Path) -> list[int]:
    """Write the files of a machine's CPUs below ROOT/sys; return the CPUs that are online."""
    numa_of = {cpu: node for node, cpus in machine.numa.items() for cpu in parse_cpus(cpus)}
    package_of = {cpu: package for package, cpus in machine.packages.items() for cpu in parse_cpus(cpus)}
    core_ids = parse_cpus(machine.core_ids)
    offline, online = set(parse_cpus(machine.offline)), []
    for index, first in enumerate(parse_cpus(machine.cores)):
        siblings = [cpu for thread in range(machine.threads) if (cpu := first + thread * machine.step) not in offline]
        values = {
            "core_id": core_ids[index % len(core_ids)],
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
    """Return the columns of a row of placements."""
    online = write_machine(SimpleNamespace(**DATA["machines"][name]), root)
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
    for row in DATA["placements"].strip().splitlines()[1:]:
        name, cpuset, ppn = row.split()[:3]
        assert place(name, cpuset, ppn, tmp_path / f"{name}-{cpuset}-{ppn}") == row.split()
