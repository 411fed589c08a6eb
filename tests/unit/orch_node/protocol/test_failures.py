"""Find the rank whose failure ended a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol import failures
from orch_node.protocol.events import Event, Exited, Raised

from orchestrator.runs import explanations
from tests.support.hostile import TEXTS

LOST_PEER = "Connection closed by peer [1]"


def culprit(*events: Event) -> int:
    """Return the rank that failed first according to these events."""
    return failures.first_cause(failures.rank_ends(events).values()).rank


def test_first_rank_that_failed_is_the_culprit() -> None:
    assert culprit(Raised(rank=2, text="boom"), Raised(rank=1, text="boom")) == 2
    assert culprit(Exited(rank=1, code=3), Raised(rank=2, text="boom")) == 1
    assert culprit(Raised(text="error: the launcher started 3 ranks")) == -1
    assert failures.first_cause(failures.rank_ends([Exited(rank=0)]).values()) is None


def test_rank_that_only_lost_its_peer_is_not_the_culprit() -> None:
    for text in (
        LOST_PEER,  # gloo
        "Broken pipe",
        "error: rank 1 on node0: full disk",  # error of another rank
        "ccl: allreduce #4: rank 1 (vm, pid 7) is gone: its process has ended",  # ccl lost a rank
        "ccl: allreduce #4: rank 1 has left the job with exit code 3",
        "ccl: broadcast #1: rank 1 has left this group after an error; see",
    ):
        assert culprit(Raised(rank=0, text=text), Exited(rank=1, signal="SIGKILL")) == 1
        assert culprit(Raised(rank=0, text=text), Raised(rank=1, text="error: rank 1 on node0: x")) == 1


NCCL_TIMEOUT = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) "
    "Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600030 milliseconds"
)


def test_rank_that_nccl_ended_after_a_timeout_is_not_the_culprit() -> None:
    timed_out = Exited(rank=0, signal="SIGABRT", text=NCCL_TIMEOUT)
    assert culprit(timed_out, Exited(rank=1, code=1)) == 1
    assert failures.rank_ends([timed_out])[0].timeout_seconds == 600
    assert failures.rank_ends([Exited(rank=0, code=1, text=NCCL_TIMEOUT)])[0].timeout_seconds is None


def test_log_of_a_rank_counts_only_if_its_backend_aborts() -> None:
    assert culprit(Exited(rank=0, signal="SIGABRT", text=LOST_PEER), Exited(rank=1, code=1)) == 1
    assert culprit(Exited(rank=0, code=1, text=LOST_PEER), Exited(rank=1, code=1)) == 0


def test_rank_killed_for_its_memory_is_the_culprit() -> None:
    killed = Exited(rank=0, signal="SIGKILL", oom="oom_kill rose")
    assert culprit(Raised(rank=0, text="Broken pipe"), killed, Exited(rank=1, code=1)) == 0


ELASTIC = """\
============================================================
fails.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 32582)
  traceback : Traceback (most recent call last):
    File "fails.py", line 1
  ValueError: planned
============================================================"""


def test_reason_is_no_separator_of_elastic() -> None:
    failure = failures.first_failure(failures.rank_ends([Raised(rank=0, text=f"ChildFailedError:\n{ELASTIC}")]), {})
    assert failure.text.splitlines()[-1] == "  ValueError: planned"


@given(text=TEXTS | st.just(f"error: rank {'9' * 6000} on x"), signal=st.none() | TEXTS)
def test_no_error_text_breaks_the_search(text: str, signal: str | None) -> None:
    rank_events = [Exited(rank=0, text=text, code=1, signal=signal), Exited(rank=1, code=1)]
    assert failures.first_failure(failures.rank_ends(rank_events), {})
    explanations.explain(text)
