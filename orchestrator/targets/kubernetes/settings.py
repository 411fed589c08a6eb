"""The settings of runs on Kubernetes: the image, the size of a pod, the storage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from orchestrator.errors import PlanError
from orchestrator.targets.kubernetes import names

CPUS = re.compile(r"(\d+(?:\.\d+)?)(m?)")  # a quantity of Kubernetes, without units that no CPU has
FILES = "/etc/orch"  # where a run's ConfigMap is mounted
TOKEN = "HF_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """The settings of orch-k8s.toml and of --k8s KEY=VALUE."""

    image: str = ""
    context: str | None = None  # of the kubeconfig; None for its current context
    namespace: str | None = None  # None for that of the context
    cpu: str = "4"  # quantity, of each pod with ranks
    memory: str = "8Gi"
    gpu: int = 0  # GPUs of each pod with ranks
    gpu_resource: str = "nvidia.com/gpu"  # or amd.com/gpu, gpu.intel.com/i915, gpu.intel.com/xe
    shm: str = "1Gi"  # /dev/shm
    claim: str = "orch"  # a PersistentVolumeClaim that all pods can write to
    mount: str = "/orch"  # its path in the pods
    storage: str = "50Gi"  # size of the claim that `orch k8s init` creates
    storage_class: str | None = None
    root: str = "/opt/orch"  # the folder of train/ in the image
    python: str = "python3"
    files: str = FILES
    uid: int = 1000
    ttl: int = 86400  # seconds
    token_secret: str = "orch-hf"
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    queue: str | None = None  # a LocalQueue of Kueue
    spread: str | None = None  # label of nodes in which the pods differ
    pack: str | None = None  # label of nodes that all pods share
    node_affinity: tuple[str, ...] = ()  # this and the following fields: see manifests.py
    tolerations: tuple[str, ...] = ()
    runtime_class: str | None = None
    volumes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    share_cores: bool = False  # more ranks than CPUs in a pod, for small test clusters

    @property
    def cpus(self) -> Fraction:
        """Return the exact number of CPUs of a pod; raise PlanError if it is not a number above 0."""
        match = CPUS.fullmatch(self.cpu)
        cpus = Fraction(match[1]) / (1000 if match[2] else 1) if match else Fraction(0)
        if cpus <= 0:
            raise PlanError(f"cpu = {self.cpu!r} is not a number of CPUs above 0.", hint="Write 16, 1.5 or 500m.")
        return cpus

    def check(self) -> None:
        """Raise PlanError for the first value that Kubernetes would refuse."""
        if not self.image or any(letter.isspace() for letter in self.image):
            raise PlanError(
                f"image = {self.image!r} is not a valid image name."
                if self.image
                else "No image is given for the pods.",
                hint="Add `--image registry.example/orch:current`, or set image in orch-k8s.toml. "
                "`orch image build` builds one.",
            )
        self.check_names()
        if self.gpu < 0 or self.ttl < 0 or self.uid < 1:
            raise PlanError(
                f"gpu = {self.gpu}, ttl = {self.ttl} and uid = {self.uid} cannot all be right.",
                hint="Use numbers of 0 or more, and a uid that is not root's.",
            )

    def check_names(self) -> None:
        """Raise PlanError for the first name or path with which orch could not build other paths."""
        for field_name in ("namespace", "claim", "token_secret"):
            name = getattr(self, field_name)
            if name is not None and not names.is_subdomain(name):
                raise PlanError(
                    f"{field_name} = {name!r} is not a valid Kubernetes name.",
                    hint="Use lower-case letters, digits and dashes (RFC 1123).",
                )
        for field_name, path in (("mount", self.mount), ("root", self.root), ("files", self.files)):
            if not path.startswith("/") or ":" in path or ".." in path.split("/"):
                raise PlanError(
                    f"{field_name} = {path!r} is not an absolute path.",
                    hint="Use a path that begins with / and contains no colon and no `..`.",
                )
