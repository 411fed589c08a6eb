"""Run a launcher and watch its ranks: `node.py supervise RUN_DIR -- mpiexec.hydra ...`.

The supervisor runs on node0, independent of the program that started it, with an agent on every
node. The ranks' events arrive on the launcher's standard output. When a rank fails, a node is lost or
nothing makes progress any more, the supervisor reports the cause, collects stack traces of the other
ranks, ends all processes on all nodes, and restarts the ranks if it may. At SIGTERM, or the signal
in ORCH_PREEMPT_SIGNAL, the ranks write a checkpoint and end. RUN_DIR/outcome.json holds the result.

The exit code is 0 if all ranks finished, 1 if not, 75 if they were preempted, and 130 if the run was
stopped (SIGINT, or SIGTERM and the file STOP).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orch_node import atomic_write, program
from orch_node.agent.run_folders import read_record
from orch_node.disk import describe_on_node
from orch_node.machine import die_with_parent
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.agent import CLAIM, WRITE, Request
from orch_node.protocol.events import Launched
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.node_names import fold
from orch_node.protocol.outcome import DONE, EX_TEMPFAIL, FAILED, PREEMPTED, REFUSED, STOPPED, Outcome
from orch_node.protocol.values import ProtocolError
from orch_node.rank.checks import describe
from orch_node.reach import BY_STEP
from orch_node.supervisor.agents import Agents
from orch_node.supervisor.attempt import POLL_SECONDS, Attempt
from orch_node.supervisor.run import SupervisedRun

# Nodes that get a file of some hundred bytes per node of the run at the same time, and their time limit.
PASS_ON_NODES, PASS_ON_SECONDS = 64, 20.0
# The number of ranks behind the address in a hostfile: `:2` for hydra, ` slots=2` for Open MPI.
RANKS_OF_HOST = re.compile(r"(:| slots=)\d+\s*$")
EXIT_CODES = {DONE: 0, FAILED: 1, REFUSED: 1, PREEMPTED: EX_TEMPFAIL, STOPPED: 130}


def main(argv: list[str]) -> int:
    """Supervise a run; return its exit code."""
    options = parse(argv)
    try:
        supervisor = Supervisor(Path(options.run_dir), options)
    except OSError as error:
        print(f"error: {describe_on_node('node0', error.filename or options.run_dir, error)}", file=sys.stderr)
        return 1
    return supervisor.run()


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the options, and the launcher's command as `launcher`."""
    parser = argparse.ArgumentParser(prog="node.py supervise")
    parser.add_argument("run_dir")
    parser.add_argument("--claims", help="folder of all runs' claims on a node's cores")
    parser.add_argument("--stall-timeout", type=float, default=0.0, help="seconds without progress; 0 for no limit")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--first-attempt", type=int, default=1, help="number of this start's first attempt")
    parser.add_argument("--elastic", action="store_true", help="restart without lost nodes")
    parser.add_argument("--keeps-batch", action="store_true", help="the recipe keeps its global batch with fewer ranks")
    parser.add_argument("--min-nodes", type=int, default=1, help="fewest nodes for --elastic")
    parser.add_argument("--launcher-restarts", action="store_true", help="the launcher itself restarts ranks")
    parser.add_argument("--path", help="folder that comes first in the launcher's PATH")
    parser.add_argument("--size-at", type=int, help="index of the number of ranks in the launcher's command")
    parser.add_argument("--nodes-at", type=int, help="index of the number of nodes in the launcher's command")
    split = argv.index("--")
    return parser.parse_args(argv[:split], argparse.Namespace(launcher=argv[split + 1 :]))


class Supervisor(SupervisedRun):
    """The supervisor of a run: its launcher, its nodes and its attempts."""

    def open_agents(self, nodes: list[str], claims: str) -> Agents:
        """Connect to the agents of the nodes."""
        return Agents(self.run_dir, nodes, claims)

    def run(self) -> int:
        """Run all attempts; return the exit code.

        A run that was stopped before it began does not connect to any other node.
        """
        if self.stop_signal or self.preempted:
            return self.finish(self.outcome_before_start())
        try:
            return self.finish(self.supervise())
        except OSError as error:  # mostly a full disk
            if "agents" in vars(self):  # the error may have prevented that they start
                self.agents.end_all()
                self.agents.leave()
            problem = describe_on_node(self.layout.node_names[0], error.filename or self.run_dir, error)
            return self.finish(Outcome(FAILED, problem=problem))

    def supervise(self) -> Outcome:
        """Reserve the nodes, and start attempts until one ends for good; return its result."""
        claims = self.options.claims or str(self.run_dir.parent / ".claims")
        self.agents = self.open_agents([*self.layout.node_names, *self.layout.spares], claims)
        ending = self.reserve_cores()
        if ending is None and (problem := self.prepare_nodes()):
            ending = self.outcome_before_start() if self.is_to_end() else Outcome(FAILED, problem=problem)
        while ending is None or self.will_restart(ending):
            self.attempts += 1
            nodes = tuple(self.layout.node_names)
            self.event_log.record(Launched(attempt=self.attempt_number, ranks=self.layout.world_size, nodes=nodes))
            ending = Attempt(self).run()
        self.agents.leave()  # release the cores before outcome.json reports the end
        return ending

    def outcome_before_start(self) -> Outcome:
        """Return the outcome of a run that was stopped or preempted before its first attempt."""
        if self.stop_signal:
            return Outcome(STOPPED)
        return Outcome(PREEMPTED, problem="without a checkpoint: the run had not started")

    def reserve_cores(self) -> Outcome | None:
        """Claim the cores of the run on all of its nodes; return why that failed, or None.

        All runs ask the nodes in the same order, so of two runs that start together one gets all nodes.
        """
        agents = self.agents
        for node in sorted([*self.layout.node_names, *self.layout.spares]):
            channel = agents.channels[node]
            if node not in agents.lost:
                channel.request(Request(CLAIM, claim=self.claim_of(node)))
            # Connecting may take a while.
            while node not in agents.lost and CLAIM not in channel.responses and not self.is_to_end():
                agents.pipes.pump(POLL_SECONDS)
                agents.watch()
            if self.is_to_end():
                return self.outcome_before_start()
            if node in agents.lost:
                return Outcome(FAILED, problem=f"{node} cannot be reached: {agents.lost[node]}")
            if conflicts := channel.responses[CLAIM].taken:
                parts = [f"run {claim.run} has {claim.describe()}" for claim in conflicts]
                return Outcome(REFUSED, problem=f"{node} is taken: {'; '.join(parts)}")
        return None

    # Restarts.

    def will_restart(self, ending: Outcome) -> bool:
        """Return whether to start another attempt, after preparing it."""
        may_restart = ending.state == FAILED and self.attempts and self.restarts < self.options.max_restarts
        if not may_restart or self.is_to_end():
            return False
        if problem := self.prepare_restart():
            self.record_news(f"no restart: {problem}")
            return False
        self.count_restart(ending)
        return True

    def prepare_restart(self) -> str:
        """Prepare another attempt, without the nodes that were lost; return why there cannot be one, or ''."""
        if leftover_nodes := [node for node, end in self.nodes.items() if end.left]:
            return f"processes could not be ended on {fold(leftover_nodes)}"
        if lost := set(self.lost()):
            if problem := self.recover(lost):
                return problem
            atomic_write.write(self.run_dir / files.LAYOUT, layouts.render(self.layout))
            if problem := self.pass_on(files.LAYOUT, self.layout.node_names):
                return problem
        return self.share_files()

    def recover(self, lost: set[str]) -> str:
        """Change the layout, the launcher's command and the hostfile after nodes were lost.

        Return why it cannot continue without them, or ''.
        """
        current, argv, options = self.layout, self.launcher_argv, self.options
        spares = [name for name in current.spares if name not in self.agents.lost]
        stand_ins = dict(zip(sorted(lost), spares))
        missing = lost - set(stand_ins)
        for node, spare in stand_ins.items():
            self.record_news(f"{spare} replaces {node}")
        layout = current.replace_nodes(stand_ins)
        if missing:
            if not options.elastic:
                return describe("no-fewer-ranks")
            if len(layout.node_names) - len(missing) < options.min_nodes:
                return f"the run needs {options.min_nodes} node{'s' * (options.min_nodes != 1)}"
            layout = layout.remove_nodes(missing)
            self.record_news(describe_continuation(layout, missing, keeps_batch=options.keeps_batch))
            argv = resize_command(argv, layout, options.size_at, options.nodes_at)
        hostfile = self.run_dir / files.HOSTFILE
        if hostfile.exists():
            atomic_write.write(hostfile, replace_hosts(hostfile.read_text(), current, stand_ins, missing))
        self.layout, self.launcher_argv = layout, argv
        return ""

    def prepare_nodes(self) -> str:
        """Give the other nodes the files of node0 that they need before the first attempt; return the problem, or ''.

        The client sends files that describe all nodes to node0 alone. The nodes of a batch job share the run's folder,
        and pods write their own.
        """
        nodes = [*self.layout.node_names, *self.layout.spares] if self.options.claims else []
        problem = self.pass_on(files.LAYOUT, nodes) or self.pass_on(files.RECORD, nodes)
        return problem or (self.share_files() if self.options.first_attempt > 1 else "")

    def pass_on(self, name: str, nodes: Sequence[str]) -> str:
        """Give a file of the run's folder to all nodes; return the problem, or ''."""
        path, receivers = self.run_dir / name, [node for node in nodes if node != self.agents.node0]
        if not receivers or not path.exists():
            return ""
        request = Request(WRITE, name=name, content=path.read_text())
        for first in range(0, len(receivers), PASS_ON_NODES):
            group = receivers[first : first + PASS_ON_NODES]
            responses = self.agents.request_each(dict.fromkeys(group, request), seconds=PASS_ON_SECONDS)
            if missing := [node for node in group if node not in responses]:
                return f"{fold(missing)} did not write {name} within {PASS_ON_SECONDS:.0f} s"
            self.agents.watch()  # an agent ends if it gets no request for too long
        return ""

    def share_files(self) -> str:
        """Give what node0 has written in the copy of the project to the other nodes; return the problem, or ''.

        The nodes of a batch job share the run's folder.
        """
        node0, *other_nodes = self.layout.node_names
        if BY_STEP in os.environ or not (self.run_dir / files.PROJECT).is_dir() or self.agents.node0 != node0:
            return ""
        leaving: list[str] = []
        with contextlib.suppress(OSError, ProtocolError):
            leaving = [host.node for host in read_record(self.run_dir).earlier_nodes if not self.attempts]
        arguments = (str(self.run_dir), str(self.attempt_number), *other_nodes, "--leaving", *leaving)
        command, news, problem = program.command("share-files", *arguments), None, ""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, preexec_fn=die_with_parent, start_new_session=True
        ) as sharing:
            while news is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    news, problem = sharing.communicate(timeout=POLL_SECONDS)
                self.agents.pipes.pump(0.0)
                self.agents.watch()
                if news is None and (self.is_to_end() or set(other_nodes) & set(self.agents.lost)):
                    os.killpg(sharing.pid, signal.SIGKILL)  # also its ssh processes
        for text in news.splitlines():
            self.record_news(text)
        cancelled = "the files of the run were not given to the other nodes"
        return (problem.strip() or cancelled) if sharing.returncode else ""

    def finish(self, ending: Outcome) -> int:
        """Write outcome.json; return the exit code."""
        # The clock may have been set since the run has started.
        now, seconds = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME) - self.began
        result = replace(ending, attempts=self.attempt_number, nodes=self.nodes, started=now - seconds, ended=now)
        if problem := self.lease.problem():  # another supervisor writes this run's files now
            print(f"error: {problem}", file=sys.stderr, flush=True)
            return EXIT_CODES[FAILED]
        self.event_log.end(result)
        self.lease.release()
        return EXIT_CODES[ending.state]


def describe_continuation(layout: RunLayout, missing: set[str], *, keeps_batch: bool) -> str:
    """Return how the run continues without some of its nodes.

    Args:
        layout: the remaining layout.
        missing: the nodes that it no longer has.
        keeps_batch: whether the recipe adapts to fewer ranks.
    """
    planned = layout.planned_size
    names = fold(sorted(missing, key=lambda name: (len(name), name)))
    text = f"continues without {names}: {layout.world_size} of {planned} ranks"
    if keeps_batch:
        return f"{text}; the recipe keeps its global batch, its order of data and its schedule"
    return describe("fewer-ranks", continuation=text, planned=planned)


def replace_hosts(hostfile: str, layout: RunLayout, stand_ins: Mapping[str, str], missing: Collection[str]) -> str:
    """Return the hostfile with the addresses of spare nodes in place of lost ones, and without missing nodes.

    It has one line per node, in order.
    """
    lines = dict(zip(layout.node_names, hostfile.splitlines(keepends=True)))
    for node, spare in stand_ins.items():
        ranks = RANKS_OF_HOST.search(lines[node])
        assert ranks is not None, "orch has written the line"
        lines[node] = layout.spares[spare] + ranks.group()
    return "".join(line for node, line in lines.items() if node not in missing)


def resize_command(launcher: list[str], layout: RunLayout, size_at: int | None, nodes_at: int | None) -> list[str]:
    """Return the launcher's command with the numbers of a new layout.

    Args:
        launcher: the command.
        layout: the new layout.
        size_at: the index of the number of ranks; None if the launcher reads the layout itself.
        nodes_at: the index of the number of nodes, or None.
    """
    numbers = {size_at: str(layout.world_size), nodes_at: str(len(layout.node_names))}
    return [numbers.get(index, word) for index, word in enumerate(launcher)]
