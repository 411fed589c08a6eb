"""The kinds of events, by the names that lines have."""

from __future__ import annotations

from orch_node.protocol.events.of_ranks import (
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
from orch_node.protocol.events.of_run import (
    Ended,
    Failed,
    Finished,
    Launched,
    NodeNews,
    NodesLost,
    OutcomeReported,
    Refused,
    Restarting,
    Stalled,
    Stopping,
    Waiting,
)

OF_RUN = (
    Launched,
    Waiting,
    Refused,
    Failed,
    Stalled,
    NodesLost,
    NodeNews,
    Stopping,
    Ended,
    Restarting,
    Finished,
    OutcomeReported,
)
KINDS: dict[str, type[Event]] = {
    one.kind: one
    for one in (
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
        *OF_RUN,
    )
}
# What a script may report, besides names of its own.
OF_SCRIPTS = (Progress, Result, Warned)
# Signs that a rank gets on.
SIGNS = (Started, Joined, FirstStep, Heartbeat, Progress, Result, Preempted, ScriptEnded, Exited)
