"""The location of a run in a cluster, and its record as stored in a ConfigMap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.record import SOURCE, RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.model.layout import uniform_layout
from orchestrator.targets.kubernetes.manifests import names

LIST_FIELDS = ("layout", "nodes")  # of a record
MAX_RANKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """A run's job in a Kubernetes cluster, and the volume with its files."""

    context: str | None  # of the kubeconfig
    namespace: str
    job: str  # the name of the object
    launcher: str
    group: str  # of the job's API
    version: str
    plural: str
    claim: str  # PersistentVolumeClaim
    mount: str  # path of the volume in the pods
    image: str
    uid: int
    python: str
    pull_secrets: tuple[str, ...]
    service_account: str | None = None
    tolerations: tuple[str, ...] = ()
    wait_limit: int | None = None  # seconds until the ranks must have started


def location_of(record: RunRecord) -> JobLocation:
    """Return the location stored in a run's record.

    Raises:
        ExecuteError: if it is missing or damaged.
    """
    try:
        return values.read(JobLocation, record.location, "location")
    except ProtocolError as error:
        raise ExecuteError(
            f"The record of {record.run_id} is damaged: {error}",
            hint="`kubectl get pods` shows whether its pods are alive; its files remain on its volume.",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNumbers:
    """The numbers from which the lists of nodes and ranks are restored."""

    word: str  # the prefix of each node's name, before its number
    nodes: int
    ppn: int
    threads: int


def without_lists(record: RunRecord) -> dict[str, Any]:
    """Return a record with numbers in place of the lists of nodes and ranks.

    A ConfigMap holds 1 MiB, and all pods of a run have the same number of ranks.
    """
    first = record.layout[0]
    fields = {name: value for name, value in render(record).items() if name not in LIST_FIELDS}
    pods = PodNumbers(
        word=first.node.rpartition("-")[0], nodes=len(record.nodes), ppn=first.local_world_size, threads=first.threads
    )
    return {**fields, "pods": values.record(pods)}


def with_lists(stored: object) -> RunRecord:
    """Return the record that `without_lists` has shortened.

    Raises:
        ProtocolError: if it is malformed or describes an impossible run.
    """
    fields = values.check_object(stored, SOURCE)
    pods = values.read(PodNumbers, fields.get("pods"), f"{SOURCE}: pods")
    if not 0 < pods.nodes * pods.ppn <= MAX_RANKS or min(pods.nodes, pods.ppn, pods.threads) < 1:
        raise ProtocolError(f"{SOURCE}: pods: {pods.nodes} with {pods.ppn} ranks each is impossible.")
    if not names.is_dns_label(pods.word):
        raise ProtocolError(f"{SOURCE}: pods: {pods.word!r:.80} is not a valid pod name.")
    layout = uniform_layout(prefix=pods.word, nodes=pods.nodes, ppn=pods.ppn, threads=pods.threads)
    nodes = [{"node": node, "via": []} for node in layout.nodes]
    return parse({**fields, "nodes": nodes, "layout": values.record(layout.rank_places)})
