"""Events and states of pods -> how a run ended. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.kube.status import JobState, PodState

Event = Mapping[str, Any]
# What a rank says when another one went away: train/roll_call.py has the same.
CONSEQUENCES = re.compile(
    r"Connection (?:closed by|reset by) peer|Connection closed by remote peer|Broken pipe"
    r"|Failed to recv, got 0 bytes|Read error \[|Write error \[|Application timeout caused pair"
    r"|Timed out waiting \d+ms for|ProcessGroupWrapper|failed to connect|wait timeout after"
)


def outcome(
    events: Iterable[Event], pods: Iterable[PodState], job: JobState, *, began: float, now: float
) -> dict[str, Any]:
    """outcome.json of a run: the supervisor's own word where there is one (MPI)."""
    told, known = list(events), list(pods)
    own = [one["outcome"] for one in told if one["event"] == "outcome"]
    if own:
        return dict(own[-1])
    state = "done" if job.state == "done" else "failed"
    failure = first_failure(told, known) if state == "failed" else None
    return {
        "schema": 1,
        "state": state,
        "first_failure": failure,
        "problem": None if state == "done" else problem(told, known, job, failure),
        "launcher_code": None,
        "attempts": 1 + restarts(told),
        "nodes": {},
        "started": began,
        "ended": now,
    }


def restarts(events: list[Event]) -> int:
    """How often rank 0 was started again."""
    return max(0, sum(1 for one in events if one["event"] == "started" and one["rank"] == 0) - 1)


def first_failure(events: list[Event], pods: list[PodState]) -> dict[str, Any] | None:
    """The rank that failed first; those that only lost a peer come after those that did not."""
    since = last_start(events)
    failed: dict[int, dict[str, Any]] = {}
    for event in events[since:]:
        rank = event["rank"]
        if event["event"] == "exception" and rank >= 0:
            found = failed.setdefault(rank, blank(event))
            found["text"] = found["text"] or event["text"]
        elif (
            event["event"] == "exit" and not event["stopped"] and (event["code"] or event["signal"])
        ):
            failed.setdefault(rank, blank(event)).update(
                code=event["code"], signal=event["signal"], oom=event.get("oom"), node=event["node"]
            )
    killed = {pod.node: pod for pod in pods if pod.oom}
    for event in events[since:]:
        if event["event"] == "started" and event.get("node") in killed:
            pod = killed[event["node"]]
            failed.setdefault(event["rank"], blank(event)).update(
                code=137, signal="SIGKILL", oom=pod.words, node=pod.node
            )
    ordered = sorted(failed.values(), key=lambda one: (is_consequence(one), one["time"]))
    return ordered[0] if ordered else None


def last_start(events: list[Event]) -> int:
    """Where the last attempt begins: at the last time that a rank was started again."""
    seen: set[int] = set()
    begin = 0
    for at, event in enumerate(events):
        if event["event"] != "started":
            continue
        if event["rank"] in seen:
            begin, seen = at, set()
        seen.add(event["rank"])
    return begin


def blank(event: Event) -> dict[str, Any]:
    return {
        "rank": event["rank"], "node": event.get("node"), "code": None, "signal": None,
        "oom": None, "text": "", "time": event["time"],
    }  # fmt: skip


def is_consequence(failure: Mapping[str, Any]) -> bool:
    return not failure["oom"] and bool(CONSEQUENCES.search(failure["text"]))


def problem(
    events: list[Event], pods: list[PodState], job: JobState, failure: dict[str, Any] | None
) -> str | None:
    """What happened, where no rank says it: a pod refused, was evicted, never started."""
    if refused := [str(one["text"]) for one in events if one["event"] == "refused"]:
        return "; ".join(dict.fromkeys(refused))
    if stalled := [str(one["text"]) for one in events if one["event"] == "stalled"]:
        return "; ".join(stalled)
    own = [pod for pod in pods if pod.state == "failed"]
    told = [pod for pod in own if not pod.words.startswith("exited with")]
    if failure and not told:
        return None
    words = [f"{pod.node}: {pod.words}" for pod in told or own]
    return "; ".join(words) or job.words or "the job failed"
