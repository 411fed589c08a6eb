"""Run records from a cluster: listed, but used only after they are checked.

A record can lead only to the job that has the run's name and label. What runs in a pod comes from
the settings of this controller.
"""

from __future__ import annotations

from dataclasses import replace

from orch_node.protocol import values
from orch_node.protocol.record import RunRecord

from orchestrator.targets.identity import UntrustedRecordError, check_output_dir
from orchestrator.targets.kubernetes.manifests import names
from orchestrator.targets.kubernetes.manifests.kinds import KINDS
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of
from orchestrator.targets.kubernetes.settings import KubernetesSettings

MAX_UID = 2**31
HINT = "Nothing was changed. Check who can change ConfigMaps in that namespace."


def trusted_record(record: RunRecord, settings: KubernetesSettings, *, label: str) -> RunRecord:
    """Return the record with the image and the interpreter of this controller.

    Args:
        record: a record from a ConfigMap.
        settings: with the context and the namespace of that ConfigMap.
        label: the run id in the ConfigMap's label.

    Raises:
        ExecuteError: if its location is damaged.
        UntrustedRecordError: if a value in it cannot be true.
    """
    if record.target != "kubernetes" or record.run_id != label:
        raise UntrustedRecordError(
            f"An object labelled with run {label!r:.80} contains the record of {record.run_id}.", hint=HINT
        )
    location = location_of(record)
    if problem := impossible_value(record, location):
        raise UntrustedRecordError(f"The record of {record.run_id} names {problem}.", hint=HINT)
    runs = f"{location.mount}/runs"
    check_output_dir(record, runs)
    trusted_location = replace(
        location,
        context=settings.context,
        namespace=settings.namespace or "default",
        image=settings.image,
        python=settings.python,
        pull_secrets=settings.pull_secrets,
        service_account=settings.service_account,
        tolerations=settings.tolerations,
        wait_limit=None,  # only the controller that started a run may end it for waiting too long
    )
    return replace(
        record,
        location=values.record(trusted_location),
        run_dir=f"{runs}/{record.run_id}",
        python=settings.python,
        train=f"{settings.root}/train",
    )


def impossible_value(record: RunRecord, location: JobLocation) -> str:
    """Return a description of the first value that no run of orch has, or an empty string."""
    kind = KINDS.get(location.launcher)
    api = (location.group, location.version, location.plural)
    if kind is None or api != (kind.group, kind.version, kind.plural):
        return f"a job of the kind {'/'.join(api)!r:.100}"
    if location.job != names.job_name(record.run_id):
        return f"the job {location.job!r:.100}"
    if not names.is_subdomain(location.claim):
        return f"the claim {location.claim!r:.100}"
    mount = location.mount.split("/")
    if mount[0] or ":" in location.mount or any(part in ("", ".", "..") for part in mount[1:]):
        return f"its volume at {location.mount!r:.100}"
    return "" if 0 < location.uid < MAX_UID else f"the user {location.uid}"
