"""Check that any result of a task is reported as printable text."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.provisioning.report import changes_of, explain, message_of
from orchestrator.provisioning.task_result import RESULTS, TaskResult, task_result
from tests.support.hostile import JSON

LIMITED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@LIMITED
@example(res=None, duration=10**400, task="", state="ok")
@given(res=JSON, duration=JSON, task=JSON, state=st.sampled_from(sorted(RESULTS.values())))
def test_any_result_of_a_task_is_reported_as_printable_text(
    res: object, duration: object, task: object, state: str
) -> None:
    data = {"host": "node0", "res": res, "duration": duration, "task": task}
    result = task_result(state, data)
    assert isinstance(result, TaskResult)
    texts = [*explain(message_of(result.result)), result.task]
    for change in changes_of(result.result, result.task):
        texts += [change.what, change.is_, change.should]
    assert all(text.isprintable() for text in texts)
