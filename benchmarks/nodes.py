"""Measure what a run on many nodes costs, and how long its end takes.

    python benchmarks/nodes.py [--nodes 1000]     # a simulation; needs no root
    python benchmarks/nodes.py --hosts 8          # hosts of this machine (tests/support/hosts.py); needs root

In the simulation, the supervisor, node0's agent and the client are real; the other agents and the ranks are stand-ins
(tests/support/stand_ins.py), without the processes of ssh and of the launcher. With --hosts, the same script runs by
mpiexec.hydra and by orch.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from measure import arguments, describe_machine, interleaved, report, seconds

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "train" / "lib")]

from orch_node.protocol.events import Exited, Failed, Joined, NodesLost  # noqa: E402

from tests.conftest import orch_environment  # noqa: E402
from tests.support.hosts import Hosts  # noqa: E402
from tests.support.stand_ins import SimulatedRun  # noqa: E402

BIN = Path(sys.executable).parent
ORCH = str(BIN / "orch")
IDLE_SECONDS, TRAINING_SECONDS, BEAT_SECONDS = 20.0, 10.0, 2.0
LIMIT_SECONDS = 600.0
TICKS = os.sysconf("SC_CLK_TCK")
MPIEXEC = "mpiexec.hydra by hand"
SCRIPT = """
import os, torch, torch.distributed as dist
if not dist.is_initialized():
    os.environ |= {"RANK": os.environ["PMI_RANK"], "WORLD_SIZE": os.environ["PMI_SIZE"]}
    dist.init_process_group("gloo")
data = torch.ones(1000)
for _ in range(20):
    dist.all_reduce(data)
print("done", flush=True)
dist.destroy_process_group()
"""
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 31, in <module>\nValueError: planned'


@dataclass
class Usage:
    """The processor time in seconds, the peak memory in bytes and the open files of a process."""

    cpu_seconds: float
    peak_bytes: int
    open_files: int


def usage(pid: int) -> Usage:
    """Return what a process has used so far."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    peak = re.search(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
    assert peak is not None
    cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS
    return Usage(cpu_seconds, int(peak[1]) << 10, len(os.listdir(folder / "fd")))


class Simulation:
    """A run whose supervisor and client are measured; `figures` has the results by name."""

    def __init__(self, run: SimulatedRun) -> None:
        """Start the supervisor, and a client that follows the run."""
        self.run = run
        self.figures: dict[str, float] = {}
        self.output = run.base / "client.txt"
        self.supervisor = run.supervise("--max-restarts=2")
        command = [ORCH, "attach", run.folder.name, "--runs-dir", str(run.folder.parent), "--show", "none"]
        with self.output.open("wb") as output:
            self.client = subprocess.Popen(command, stdout=output, stderr=output)

    def wait(self, name: str, condition: Callable[[], object]) -> None:
        """Wait until a condition is true, and record the seconds."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > LIMIT_SECONDS:
                raise SystemExit(f"{name}: not within {LIMIT_SECONDS:.0f} s")
            time.sleep(0.02)
        self.figures[name] = time.monotonic() - began

    def join(self, attempt: int) -> None:
        """Wait for the launch of an attempt, and start its ranks."""
        self.wait(f"launch of attempt {attempt}", lambda: self.run.stand_ins.attempts == attempt)
        self.run.begin_attempt()
        joined = attempt * self.run.layout.world_size
        self.wait(f"joins of attempt {attempt}", lambda: len(self.run.events(Joined)) == joined)

    def shares(self, name: str, action: Callable[[], None]) -> None:
        """Record the share of a core that supervisor and client use during an action."""
        processes = {"supervisor": self.supervisor.pid, "client": self.client.pid}
        used_before, began = {role: usage(pid).cpu_seconds for role, pid in processes.items()}, time.monotonic()
        action()
        seconds = time.monotonic() - began
        for role, pid in processes.items():
            self.figures[f"{name}: cores of the {role}"] = (usage(pid).cpu_seconds - used_before[role]) / seconds

    def train(self) -> None:
        """Report progress of all ranks for some seconds."""
        for count in range(int(TRAINING_SECONDS / BEAT_SECONDS)):
            self.run.beat(count + 1)
            time.sleep(BEAT_SECONDS)

    def client_shows(self, text: str) -> bool:
        """Return whether the client has printed a text."""
        return text in self.output.read_text()

    def record_usage(self) -> None:
        """Record the processor time, memory and open files of both processes."""
        for role, pid in (("supervisor", self.supervisor.pid), ("client", self.client.pid)):
            used = usage(pid)
            self.figures[f"{role}: seconds of processor time"] = used.cpu_seconds
            self.figures[f"{role}: MB of memory"] = used.peak_bytes / 1e6
            self.figures[f"{role}: open files"] = used.open_files


def simulate(nodes: int) -> dict[str, float]:
    """Return the figures of a run with a failing rank, a lost node, a restart on a spare node, and a stop."""
    with tempfile.TemporaryDirectory() as name:
        run = SimulatedRun(Path(name), nodes)
        simulation = Simulation(run)
        simulation.join(1)
        simulation.shares("nothing happens", lambda: time.sleep(IDLE_SECONDS))
        simulation.shares("training", simulation.train)
        run.fail(nodes // 2, TRACEBACK)
        simulation.wait("a failed rank is recorded", lambda: run.events(Failed))
        simulation.wait("and then shown by the client", lambda: simulation.client_shows(f"rank {nodes // 2} on node"))
        simulation.join(2)
        run.stand_ins.silent.add(f"node{nodes // 3}")
        simulation.wait("a lost node is recorded", lambda: run.events(NodesLost))
        simulation.wait("and then shown by the client", lambda: simulation.client_shows(f"node{nodes // 3} was lost"))
        simulation.join(3)
        simulation.record_usage()
        began = time.monotonic()
        subprocess.run([ORCH, "stop", run.folder.name, "--runs-dir", str(run.folder.parent)], stdout=subprocess.DEVNULL)
        simulation.client.wait(LIMIT_SECONDS)
        simulation.supervisor.wait(LIMIT_SECONDS)
        simulation.figures["orch stop, until the client has ended"] = time.monotonic() - began
        run.stand_ins.stop()
        return simulation.figures


# Hosts of this machine.


def run_on_hosts(count: int, repeats: int) -> None:
    """Report a script's seconds on hosts, by mpiexec.hydra and by orch, and of the time after its end."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        os.environ |= orch_environment(folder)
        lab = Hosts(folder / ".hosts", count)
        stack.callback(lab.stop)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "hosts").write_text("".join(f"{host.address}:1\n" for host in lab.hosts))
        options = ["--inventory", str(lab.write_inventory(dict(os.environ))), "--runs-dir", str(folder / "runs")]
        train = [ORCH, "train", "script.py", "--nodes", str(count), "--ppn", "1", "--backend", "gloo", *options]
        after_end: list[float] = []
        processor: dict[str, list[float]] = {MPIEXEC: [], "orch train": []}

        def measured(name: str, command: list[str]) -> float:
            before = processor_seconds(lab)
            spent = seconds(command, cwd=folder)
            processor[name].append(processor_seconds(lab) - before)
            return spent

        def by_orch() -> float:
            spent = measured("orch train", train)
            after_end.append(time.time() - last_exit(folder / "runs"))
            return spent

        cases = {MPIEXEC: lambda: measured(MPIEXEC, plain_command(lab, folder)), "orch train": by_orch}
        figures = interleaved(cases, repeats)
        figures["from the last rank's end to the prompt"] = after_end
        logs = [ORCH, "logs", "last", "--runs-dir", str(folder / "runs")]
        figures["orch logs"] = [seconds(logs, cwd=folder)]
        report(f"The same script on {count} hosts of this machine", "seconds", figures, MPIEXEC)
        report("The same, processor time of all processes", "seconds", processor, MPIEXEC)


def processor_seconds(lab: Hosts) -> float:
    """Return the processor time of the processes that have ended on all hosts, and of the commands on this machine."""
    total = sum(os.times()[2:4])
    for host in lab.hosts:
        pid = host.process.pid  # of unshare, whose child is sshd, the first process of the host
        sshd = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        fields = Path(f"/proc/{sshd}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / TICKS
    return total


def plain_command(lab: Hosts, folder: Path) -> list[str]:
    """Return the command that runs the script on all hosts without orch, from the first host."""
    variables = {
        **{"OMP_NUM_THREADS": "1", "I_MPI_PIN": "0", "I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BRANCH_COUNT": "64"},
        **{"MASTER_ADDR": lab.hosts[0].address, "MASTER_PORT": "29555", "GLOO_SOCKET_IFNAME": "eth0"},
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {lab.root}/ssh/config",
    }
    ranks = ["-machinefile", "hosts", "-n", str(len(lab.hosts)), sys.executable, "script.py"]
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), str(BIN / "mpiexec.hydra"), *ranks]
    return [*lab.ssh_command(lab.hosts[0]), f"cd {shlex.quote(str(folder))} && {shlex.join(command)}"]


def last_exit(runs: Path) -> float:
    """Return the time at which the last rank of the newest run has ended."""
    lines = max(runs.glob("*/events.jsonl"), key=os.path.getmtime).read_text().splitlines()
    return max(event["time"] for event in map(json.loads, lines) if event["event"] == Exited.kind)


def main() -> None:
    settings = arguments(nodes=1000, hosts=0)
    if settings.hosts:
        run_on_hosts(settings.hosts, settings.repeats)
        return
    figures = simulate(settings.nodes)
    if settings.json:
        print(json.dumps({"schema": 1, "machine": describe_machine(), "nodes": settings.nodes, "figures": figures}))
        return
    print(f"{settings.nodes} simulated nodes, on {describe_machine()}")
    for name, value in figures.items():
        print(f"  {name:45} {value:9.3f}")


if __name__ == "__main__":
    main()
