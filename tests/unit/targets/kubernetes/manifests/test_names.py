"""Check that any run has valid names in Kubernetes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.targets.kubernetes.manifests import names


@given(st.text(max_size=80), st.text(max_size=80))
def test_run_ids_and_job_names_are_names(recipe: str, another_recipe: str) -> None:
    run = names.run_id("20260101-120000", recipe, "ab12")
    assert names.is_label_value(run)
    assert run
    job = names.job_name(run)
    assert names.is_dns_label(f"{job}-launcher")
    assert names.is_dns_label(f"{job}-node-0-4999-abcde")
    assert names.is_subdomain(f"{job}-files")
    assert names.job_name(names.run_id("20260101-120000", another_recipe, "ab13")) != job


@given(st.text(max_size=300))
def test_any_run_id_has_a_job_name(run: str) -> None:
    assert names.is_dns_label(names.job_name(run))
    assert len(names.job_name(run)) <= names.JOB_MAX
