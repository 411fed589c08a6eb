"""The settings of runs on Kubernetes: the image, the size of a pod, the storage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from orchestrator.errors import PlanError
from orchestrator.load.files import StrictModel
from orchestrator.model.facts import satisfies
from orchestrator.targets.kubernetes import names

CPUS = re.compile(r"(\d+(?:\.\d+)?)(m?)")  # a quantity of Kubernetes, without units that no CPU has
TOKEN = "HF_TOKEN"


def checked_path(path: str) -> str:
    if not path.startswith("/") or ":" in path or ".." in path.split("/"):
        raise ValueError("not an absolute path without colons and `..`")
    return path


NAME_RULE = "Kubernetes name: use lower-case letters, digits and dashes (RFC 1123)"
KubernetesName = Annotated[str, satisfies(names.is_subdomain, NAME_RULE)]
PodPath = Annotated[str, AfterValidator(checked_path)]


class KubernetesSettings(StrictModel):
    """The settings of orch-k8s.toml and of --k8s KEY=VALUE."""

    model_config = ConfigDict(frozen=True, strict=False)

    image: Annotated[str, Field(pattern=r"^\S*$")] = ""
    context: str | None = None  # of the kubeconfig; None for its current context
    namespace: KubernetesName | None = None  # None for that of the context
    cpu: str = "4"  # quantity, of each pod with ranks
    memory: str = "8Gi"
    gpu: NonNegativeInt = 0  # GPUs of each pod with ranks
    gpu_resource: str = "nvidia.com/gpu"  # or amd.com/gpu, gpu.intel.com/i915, gpu.intel.com/xe
    shm: str = "1Gi"  # /dev/shm
    claim: KubernetesName = "orch"  # a PersistentVolumeClaim that all pods can write to
    mount: PodPath = "/orch"  # its path in the pods
    storage: str = "50Gi"  # size of the claim that `orch k8s init` creates
    storage_class: str | None = None
    root: PodPath = "/opt/orch"  # the folder of train/ in the image
    python: str = "python3"
    files: PodPath = "/etc/orch"  # where a run's ConfigMap is mounted
    uid: PositiveInt = 1000
    ttl: NonNegativeInt = 86400  # seconds
    token_secret: KubernetesName = "orch-hf"
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None
    node_selector: Mapping[str, str] = {}
    queue: str | None = None  # a LocalQueue of Kueue
    spread: str | None = None  # label of nodes in which the pods differ
    pack: str | None = None  # label of nodes that all pods share
    node_affinity: tuple[str, ...] = ()  # this and the following fields: see manifests.py
    tolerations: tuple[str, ...] = ()
    runtime_class: str | None = None
    volumes: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    secret_env: Mapping[str, str] = {}
    share_cores: bool = False  # more ranks than CPUs in a pod, for small test clusters

    @property
    def cpus(self) -> Fraction:
        """Return the exact number of CPUs of a pod; raise PlanError if it is not a number above 0."""
        match = CPUS.fullmatch(self.cpu)
        cpus = Fraction(match[1]) / (1000 if match[2] else 1) if match else Fraction(0)
        if cpus <= 0:
            raise PlanError(f"cpu = {self.cpu!r} is not a number of CPUs above 0.", hint="Write 16, 1.5 or 500m.")
        return cpus

    def check_image(self) -> None:
        """Raise PlanError if there is no image."""
        if not self.image:
            raise PlanError.about("image-of-pods")
