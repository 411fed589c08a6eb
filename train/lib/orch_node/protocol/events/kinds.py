"""All kinds of events by their names in JSON."""

from __future__ import annotations

from orch_node.protocol.events.rank_events import (
    Decided,
    Event,
    Exited,
    FirstStep,
    Heartbeat,
    Joined,
    Preempted,
    Progress,
    Raised,
    Result,
    ScriptEnded,
    Started,
    Unanswered,
    UnreadableEvent,
    Warned,
)
from orch_node.protocol.events.run_events import (
    Ended,
    Failed,
    Finished,
    Launched,
    NodeNews,
    NodesLost,
    Refused,
    Restarting,
    Stalled,
    Stopping,
    Waiting,
)

RUN_EVENTS = (Launched, Waiting, Refused, Failed, Stalled, NodesLost, NodeNews, Stopping, Ended, Restarting, Finished)
KINDS: dict[str, type[Event]] = {
    event_type.kind: event_type
    for event_type in (
        Started,
        Joined,
        FirstStep,
        Heartbeat,
        Progress,
        Result,
        Preempted,
        Unanswered,
        Raised,
        ScriptEnded,
        Exited,
        Warned,
        Decided,
        UnreadableEvent,
        *RUN_EVENTS,
    )
}
# Events that a script may report, in addition to those that it defines.
SCRIPT_EVENTS = (Progress, Result, Warned)
# Events that show progress of a rank.
PROGRESS_EVENTS = (Started, Joined, FirstStep, Heartbeat, Progress, Result, Preempted, ScriptEnded, Exited)
