"""Records of runs that a cluster has sent: shown, and followed only to the job that has the run's
name and label; what would run in a pod comes from the settings of this controller."""

from __future__ import annotations

from dataclasses import replace

from orch_node.protocol import files
from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.targets.kubernetes.location import JobLocation, location_of, render
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.settings import KubeSettings

LARGEST_ID = 2**31


class Unfollowed(RequestError):
    """What the record of a run says cannot be so."""

    advice = "Nothing was done there: look who may change ConfigMaps in that namespace."


def followed(record: RunRecord, settings: KubeSettings, *, label: str) -> RunRecord:
    """The record with this controller's own image and interpreter. `settings`: with the context
    and the namespace that were asked; `label`: the run that the record's object is of.

    Raises ExecuteError, Unfollowed.
    """
    if record.target != "kubernetes" or record.run_id != label:
        raise Unfollowed(f"an object of run {label!r:.80} tells of {record.run_id}.")
    said = location_of(record)
    if wrong := impossible(record, said):
        raise Unfollowed(f"{record.run_id} is said to have {wrong}.")
    here = replace(
        said,
        context=settings.context,
        namespace=settings.namespace or "default",
        image=settings.image,
        python=settings.python,
        pull_secrets=settings.pull_secrets,
        service_account=settings.service_account,
        tolerations=settings.tolerations,
        wait_limit=None,  # a record of somebody else ends no run
    )
    runs = f"{said.mount}/runs"
    return replace(
        record,
        location=render(here),
        run_dir=f"{runs}/{record.run_id}",
        python=settings.python,
        train=f"{settings.root}/train",
        output_dir=output_dir(record, runs),
    )


def impossible(record: RunRecord, said: JobLocation) -> str:
    """What no run of orch has, in words; empty if there is nothing."""
    kind = KINDS.get(said.launcher)
    where = (said.group, said.version, said.plural)
    if kind is None or where != (kind.group, kind.version, kind.plural):
        return f"a job of the kind {'/'.join(where)!r:.100}"
    if said.job != names.job_name(record.run_id):
        return f"the job {said.job!r:.100}"
    if not names.is_subdomain(said.claim):
        return f"the claim {said.claim!r:.100}"
    mount = said.mount.split("/")
    if mount[0] or ":" in said.mount or any(part in ("", ".", "..") for part in mount[1:]):
        return f"its volume at {said.mount!r:.100}"
    return "" if 0 < said.uid < LARGEST_ID else f"the user {said.uid}"


def output_dir(record: RunRecord, runs: str) -> str | None:
    """The run's own, or that of an earlier run which it has carried on. Raises Unfollowed."""
    said = record.output_dir
    if said is None:
        return None
    run = said.removeprefix(f"{runs}/").removesuffix("/output")
    if not files.is_run_id(run) or said != f"{runs}/{run}/output":
        raise Unfollowed(f"{record.run_id} is said to write to {said!r:.100}, outside of {runs}.")
    return said
