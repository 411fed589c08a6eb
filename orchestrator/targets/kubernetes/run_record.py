"""The location of a run in a cluster, and its record as stored in a ConfigMap.

Records from a cluster are listed, but used only after they are checked. A record can lead only to the job that has the
run's name and label. What runs in a pod comes from the settings of this controller.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.pod import PodConfig
from orch_node.protocol.record import SOURCE, RunRecord, parse, render

from orchestrator.errors import ExecuteError
from orchestrator.model.cluster import uniform_layout
from orchestrator.model.printable import one_line
from orchestrator.targets.interface import UntrustedRecordError, check_output_dir
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.manifests import KINDS
from orchestrator.targets.kubernetes.settings import KubernetesSettings

LIST_FIELDS = ("layout", "nodes")  # of a record
MAX_RANKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """A run's job in a Kubernetes cluster, and the volume with its files."""

    context: str | None  # of the kubeconfig
    namespace: str
    job: str  # the name of the object
    launcher: str  # a key of KINDS
    claim: str  # PersistentVolumeClaim
    mount: str  # path of the volume in the pods
    image: str
    uid: int
    python: str
    pull_secrets: tuple[str, ...]
    service_account: str | None = None
    tolerations: tuple[str, ...] = ()
    wait_limit: int | None = None  # seconds until the ranks must have started


def new_location(run_id: str, launcher: str, settings: KubernetesSettings) -> JobLocation:
    """Return the location of a new run in the cluster of the settings."""
    shared = settings.model_dump(include={field.name for field in fields(JobLocation)})
    fixed = {"namespace": settings.namespace or "default", "job": names.job_name(run_id), "launcher": launcher}
    return JobLocation(**{**shared, **fixed})


def location_of(record: RunRecord) -> JobLocation:
    """Return the location stored in a run's record.

    Raises:
        ExecuteError: if it is missing or damaged.
    """
    try:
        return values.read(JobLocation, record.location, "location")
    except values.ProtocolError as error:
        raise ExecuteError.about("damaged-location-of-pods", run_id=record.run_id, error=error) from None


def without_lists(record: RunRecord) -> dict[str, Any]:
    """Return a record without the lists of nodes and ranks, whose numbers pod.json has.

    A ConfigMap holds 1 MiB, and all pods of a run have the same number of ranks.
    """
    return {name: value for name, value in render(record).items() if name not in LIST_FIELDS}


def with_lists(stored: object, pods: PodConfig) -> RunRecord:
    """Return the record that `without_lists` has shortened.

    Raises:
        ProtocolError: if it is malformed or describes an impossible run.
    """
    fields = values.check(stored, SOURCE, dict)
    if not 0 < pods.pods * pods.ppn <= MAX_RANKS or min(pods.pods, pods.ppn, pods.threads) < 1:
        raise values.ProtocolError(f"{SOURCE}: {pods.pods} pods with {pods.ppn} ranks each are impossible.")
    if not names.is_dns_label(pods.word):
        raise values.ProtocolError(f"{SOURCE}: {pods.word!r:.80} is not a valid pod name.")
    layout = uniform_layout(prefix=pods.word, nodes=pods.pods, ppn=pods.ppn, threads=pods.threads)
    nodes = [{"node": node, "via": []} for node in layout.nodes]
    return parse({**fields, "nodes": nodes, "layout": values.record(layout.rank_places)})


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
    location = location_of(record)
    volume = {"claim": location.claim, "mount": location.mount, "uid": location.uid}
    try:
        if record.target != "kubernetes" or record.run_id != label:
            raise ValueError(f"the label {label!r:.80} and the target {record.target!r:.80}")
        if location.launcher not in KINDS or location.job != names.job_name(record.run_id):
            raise ValueError(f"the {location.launcher!r:.100} {location.job!r:.100}")
        settings = KubernetesSettings(**{**dict(settings), **volume})
    except ValueError as error:  # also pydantic's
        problem = one_line(str(error))
        raise UntrustedRecordError.about("impossible-record", run_id=record.run_id, problem=problem) from None
    runs = f"{location.mount}/runs"
    check_output_dir(record, runs)
    return replace(
        record,
        # Without a wait_limit: only the controller that started a run may end it for waiting too long.
        location=values.record(new_location(record.run_id, location.launcher, settings)),
        run_dir=f"{runs}/{record.run_id}",
        python=settings.python,
        train=f"{settings.root}/train",
    )
