"""Names and labels of Kubernetes objects."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, as services require it
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_MAX = 63
SUBDOMAIN_MAX = 253
RECIPE_MAX = 16  # in a run id: operators add up to 21 characters to the name of its job, such as `-node-0-123-abcde`

OWNER = "app.kubernetes.io/managed-by"
MANAGER = "orch"
RUN = "orch/run"
QUEUE = "kueue.x-k8s.io/queue-name"  # Kueue's label on a job
# The containers in which orch's programs run; admission webhooks may add others, such as the proxies of a service mesh.
CONTAINERS = ("torchrun", "pytorch", "node", "reader")
PART = "orch/part"  # label of a ConfigMap with a part of a run's project, and of a pod through which files are fetched
TTL = "orch/ttl"  # annotation of jobs that orch deletes: seconds that they are kept after their end


def is_dns_label(text: str) -> bool:
    return len(text) <= LABEL_MAX and bool(DNS_LABEL.fullmatch(text))


def is_subdomain(text: str) -> bool:
    return len(text) <= SUBDOMAIN_MAX and bool(DNS_SUBDOMAIN.fullmatch(text))


def run_id(stamp: str, recipe: str, suffix: str) -> str:
    """Return a run id that is a valid label, and that the stamp and the suffix make unique.

    The name of the recipe is reduced to lower-case letters, digits and single dashes.
    """
    ascii_text = unicodedata.normalize("NFKD", recipe).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_text).strip("-")
    return f"{stamp}-{slug[:RECIPE_MAX].strip('-') or 'run'}-{suffix}"


def job_name(run: str) -> str:
    """Return the name of a run's job."""
    return f"orch-{run}"


def metadata(name: str, namespace: str | None, own_labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of an object, by default of one that belongs to a namespace and to no run."""
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": own_labels or labels()}


def labels(run: str = "") -> dict[str, str]:
    """Return the labels of all objects of a run; orch deletes no object of a run without them."""
    return {OWNER: MANAGER} | ({RUN: run} if run else {})


def selector(run: str = "") -> str:
    """Return a label selector for the objects of one run, or of all runs."""
    return ",".join([*(f"{key}={value}" for key, value in labels(run).items()), *([] if run else [RUN])])
