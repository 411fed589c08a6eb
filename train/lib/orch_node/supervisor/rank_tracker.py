"""Track the ranks of an attempt: which have joined, are behind, have failed first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from orch_node.protocol import events, failures
from orch_node.protocol.failures import RankEnd
from orch_node.protocol.layout import RunLayout
from orch_node.protocol.node_names import MAX_LISTED, fold, grouped
from orch_node.protocol.record import number_ranges

TRACE_LOG_SECONDS = 5.0  # in which the log of a rank grows by requested stack traces
MAX_POSITIONS = 3  # ranks whose position is reported
EXIT_SECONDS = 10.0  # for exit handlers that do not wait for other ranks
# Time for a backend that reports the lost peer itself, or a script that does not need the result.
GRACE_SECONDS = 10.0
SILENT_EXIT = "ended without finishing the script (exit code 0)"
WORLD = ""  # the key of the default group


# Where a rank waits: the key of the group, the number of the last collective that it has begun in the group, and how
# many it has begun in all groups.
Position = tuple[str, int, int]


class RankTracker:
    """The ranks of a layout, as their events describe them. Times are those of the caller's clock.

    A rank passes through these sets, and is removed from none of them. Most of them hold the newest event of each rank:

    | set | the rank has | event |
    | --- | --- | --- |
    | nodes | a place in the layout | |
    | started | a process on its node | Started |
    | joined | joined the process group | Joined |
    | heartbeats | reported counts | Heartbeat |
    | checkpoints | written a checkpoint because of a preemption | Preempted |
    | script_ends | come to the end of its script | ScriptEnded |
    | leaving | begun its exit handlers | Heartbeat |
    | exits | ended, with or without an error | Exited |
    | ends | failed, in the order of the reports | those of protocol/failures.py |
    | unanswered | no handler that writes stack traces | Unanswered |
    | stopped | a process that a signal or a debugger has stopped | none: the supervisor looks |
    """

    def __init__(self, layout: RunLayout, now: float) -> None:
        self.nodes = {placement.rank: placement.node for placement in layout.ranks}
        self.last_progress = now
        self.traces_requested = -TRACE_LOG_SECONDS
        self.reported: dict[type[events.Event], dict[int, Any]] = defaultdict(dict)
        self.started: dict[int, events.Started] = self.reported[events.Started]
        self.joined: dict[int, events.Joined] = self.reported[events.Joined]
        self.exits: dict[int, events.Exited] = self.reported[events.Exited]
        self.heartbeats: dict[int, events.Heartbeat] = self.reported[events.Heartbeat]
        self.heartbeats.update(dict.fromkeys(self.nodes, events.Heartbeat()))
        self.script_ends: dict[int, events.ScriptEnded] = self.reported[events.ScriptEnded]
        self.checkpoints: dict[int, events.Preempted] = self.reported[events.Preempted]
        self.unanswered: dict[int, events.Unanswered] = self.reported[events.Unanswered]
        self.ends: dict[int, RankEnd] = {}
        self.leaving: set[int] = set()
        self.stopped: set[int] = set()
        self.blocked: dict[int, Position] = {}
        self.blocked_since = now

    def add_event(self, event: events.Event, now: float) -> None:
        """Update the ranks with an event."""
        idle = isinstance(event, events.Heartbeat) and event.idle
        if isinstance(event, events.PROGRESS_EVENTS) and not idle and not self.is_log_of_traces(event, now):
            self.last_progress = now
        failures.add_event(self.ends, event)
        if type(event) in self.reported:
            self.reported[type(event)][event.rank] = event
        if isinstance(event, events.Heartbeat) and event.leaving:
            self.leaving.add(event.rank)

    def is_log_of_traces(self, event: events.Event, now: float) -> bool:
        """Return whether only the log has grown, by stack traces that were just requested."""
        if not isinstance(event, events.Heartbeat) or now - self.traces_requested > TRACE_LOG_SECONDS:
            return False
        last = self.heartbeats.get(event.rank, event)
        return (event.collectives, event.steps) == (last.collectives, last.steps)

    @property
    def first_cause(self) -> RankEnd | None:
        """Return the first failure that is not only the consequence of another one, if there is one."""
        return failures.first_cause(self.ends.values())

    def undecided(self) -> bool:
        """Return whether the first failure still lacks its exit code or its cause."""
        first = self.first_cause
        return first is not None and (first.exited is None or first.is_consequence)

    def unfinished(self) -> list[int]:
        """Return the ranks that have not ended."""
        return sorted(set(self.nodes) - set(self.exits))

    def any_preempted(self) -> bool:
        """Return whether a rank has ended because of a preemption."""
        return any(end.preempted for end in self.exits.values())

    def mismatched_collectives(self, now: float) -> str:
        """Return why the run cannot continue, once ranks have waited long enough for ranks whose script has ended.

        Such a collective never completes. Some backends report the lost peer; with MPI the rank that has
        ended waits in MPI_Finalize for the others, and nothing would happen until the stall timeout.
        """
        blocked = self.positions_beyond_ended_scripts(self.waiting()) if self.script_ends else {}
        if blocked != self.blocked:  # a rank that makes progress does not wait
            self.blocked, self.blocked_since = blocked, now
        is_over = blocked and now - self.blocked_since > GRACE_SECONDS
        return self.describe_mismatched_collectives(blocked) if is_over else ""

    def positions_beyond_ended_scripts(self, ranks: Iterable[int]) -> dict[int, Position]:
        """Return the ranks that began more collectives of a group than a rank whose script has ended."""
        last: dict[str, int] = {}
        for end in self.script_ends.values():
            for group, count in counts_by_group(end).items():
                last[group] = min(count, last.get(group, count))
        positions: dict[int, Position] = {}
        for rank in sorted(ranks):
            beat = self.heartbeats.get(rank, events.Heartbeat())
            for group, count in counts_by_group(beat).items():
                if count > last.get(group, count) and rank not in positions:
                    positions[rank] = (group, count, beat.collectives)
        return positions

    def describe_mismatched_collectives(self, waiting: Mapping[int, Position]) -> str:
        """Return in one line which ranks' scripts have ended while these ones wait for them."""
        group, _, _ = next(iter(waiting.values()))
        counts = {rank: number for rank, (key, number, _) in waiting.items() if key == group}
        furthest = max(counts.values())
        ends = {rank: counts_by_group(end).get(group, furthest) for rank, end in self.script_ends.items()}
        early = sorted(rank for rank, count in ends.items() if count < furthest)
        last = min(ends[rank] for rank in early)
        end = SILENT_EXIT if self.silent_exits.issuperset(early) else "ended the script"
        reports = (*self.reported[events.Heartbeat].items(), *self.reported[events.ScriptEnded].items())
        numbers = number_ranges({rank for rank, report in reports if group in report.groups})
        members = "" if group == WORLD else f" of the group of ranks {numbers}"
        return (
            f"{self.format_ranks(early)} {end} after {last} collectives{members}, but "
            f"{self.format_ranks(counts)} {'wait' if len(counts) > 1 else 'waits'} in collective "
            f"{furthest}, which needs all ranks{members and ' of the group'}"
        )

    @property
    def silent_exits(self) -> set[int]:
        """Ranks that ended with exit code 0 without leaving their process group."""
        return {rank for rank, end in self.exits.items() if not end.finished}

    def waits_only_for_wrappers(self, now: float) -> bool:
        """Return whether all ranks have ended, but their wrappers and so the launcher have not.

        Wrappers wait after a rank that has not left its process group. The exit handlers of other
        ranks then wait in MPI_Finalize. A launcher also waits for processes that a script has left behind.
        """
        if not self.unfinished() and all(end.finished and end.code == 0 for end in self.exits.values()):
            return self.seconds_since_progress(now) > EXIT_SECONDS
        if not any(end.waits for end in self.exits.values()) or not self.leaving.issuperset(self.unfinished()):
            return False
        return not self.unfinished() or self.seconds_since_progress(now) > EXIT_SECONDS

    def describe_silent_exits(self) -> str:
        """Return in one line which ranks ended without finishing their script, or ''."""
        ranks = self.format_ranks(sorted(self.silent_exits))
        return f"{ranks} {SILENT_EXIT}" if ranks else ""

    def seconds_since_progress(self, now: float) -> float:
        """Return the seconds since the last progress of any rank."""
        return now - self.last_progress

    def collectives(self) -> dict[int, int]:
        """Return the number of collectives that each rank has begun whose script has not ended."""
        return {rank: self.heartbeats[rank].collectives for rank in self.waiting()}

    def waiting(self) -> list[int]:
        """Return the ranks whose scripts have not ended, except by a timeout of NCCL while they waited for others."""
        timed_out = {rank for rank, end in self.ends.items() if rank in self.nodes and end.timeout_seconds is not None}
        return sorted((set(self.unfinished()) | timed_out) - set(self.script_ends))

    def collective_timeout(self) -> str:
        """Return who is missing in the collective whose timeout has ended the run, or '' if another failure has."""
        first = self.first_cause
        if first is None or first.timeout_seconds is None:
            return ""
        return f"NCCL's timeout of {first.timeout_seconds:g} s is over: {self.describe_missing_ranks()}"

    def behind(self) -> list[int]:
        """Return the unfinished ranks for which others wait in a later collective."""
        counts = self.collectives()
        furthest = max(counts.values(), default=0)
        return [rank for rank, count in counts.items() if count < furthest]

    def all_idle(self) -> bool:
        """Return whether all ranks whose scripts have not ended use no CPU and make no progress."""
        waiting = self.waiting()
        return bool(waiting) and all(self.heartbeats[rank].idle for rank in waiting)

    def describe_missing_ranks(self) -> str:
        """Return in one line which ranks are missing or behind."""
        if missing := sorted(self.nodes.keys() - self.joined):
            return f"{len(self.joined)} of {len(self.nodes)} ranks joined; missing: {self.format_ranks(missing)}"
        waiting, counts, behind = self.waiting(), self.collectives(), self.behind()
        ranks, furthest, total = self.format_ranks(waiting), max(counts.values(), default=0), len(self.nodes)
        stopped = [rank for rank in waiting if rank in self.stopped]
        parts = [f"{total - len(waiting)} of {total} ranks have ended"] if len(waiting) < total else []
        parts.append(self.describe_silent_exits())
        if behind:
            parts.append(f"{len(waiting) - len(behind)} of {total} ranks wait in collective {furthest}")
            if active := [rank for rank in behind if counts[rank]]:
                parts.append(f"behind: {self.format_ranks(active, counts)}")
            # The count of a stopped process is that of its last report.
            if inactive := [rank for rank in behind if not counts[rank] and rank not in stopped]:
                parts.append(f"{self.format_ranks(inactive)} never reached the first collective")
        elif furthest:
            parts.append(f"{ranks} {'are all' if len(waiting) > 1 else 'is'} at collective {furthest}")
        else:
            parts.append(f"no progress of {ranks}")
        if stopped:
            are_stopped = f"{self.format_ranks(stopped)} {'are' if len(stopped) > 1 else 'is'} stopped"
            parts.append(f"{are_stopped} by a signal (SIGSTOP, SIGTSTP) or a debugger")
        return "; ".join(filter(None, parts))

    def format_ranks(self, ranks: Collection[int], counts: dict[int, int] | None = None) -> str:
        """Return ranks with their nodes: `node3 ranks 12-14, node5 rank 20 (at 17)`.

        Ranks on many nodes are in one range: `ranks 0-31 on node[0-15]`.
        """
        by_node = grouped((self.nodes[rank], rank) for rank in ranks)
        if len(by_node) > MAX_LISTED:
            counts_text = f" (at {number_ranges({counts[rank] for rank in ranks})})" if counts else ""
            return f"ranks {number_ranges(ranks)} on {fold(by_node)}{counts_text}"
        parts = []
        for node, local in by_node.items():
            counts_text = f" (at {', '.join(str(counts[rank]) for rank in local)})" if counts else ""
            parts.append(f"{node} rank{'s' * (len(local) > 1)} {number_ranges(local)}{counts_text}")
        return ", ".join(parts)

    def describe_positions(self, positions: Mapping[str, str], ranks: Iterable[int]) -> str:
        """Return where these ranks are, `; it is at hang.py:6 main`, or where the first of them are.

        Ranks that are stopped have no position in their script.
        """
        running = [rank for rank in ranks if rank not in self.stopped]
        texts = [f"rank {rank} is at {positions[str(rank)]}" for rank in running if str(rank) in positions]
        if len(running) == 1 and texts:
            return f"; it is at {positions[str(running[0])]}"
        return "".join(f"; {text}" for text in texts[:MAX_POSITIONS])


def counts_by_group(report: events.Heartbeat | events.ScriptEnded) -> dict[str, int]:
    """Return the numbers of collectives in a report, by the key of their group."""
    return {WORLD: report.world_collectives, **report.groups}
