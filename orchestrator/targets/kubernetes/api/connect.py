"""Connect to a cluster by the kubeconfig, or from one of its pods."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import RequestError
from orchestrator.targets.kubernetes.api.client import KubernetesClient


def connect(context: str | None = None, namespace: str | None = None) -> KubernetesClient:
    """Return a connection to a namespace.

    Args:
        context: of the kubeconfig; None for its current one, or for the cluster of this pod.
        namespace: None for that of the context.

    Raises:
        RequestError: if no cluster is configured.
    """
    try:
        import kubernetes.config
    except ImportError:
        raise RequestError(
            "--on k8s needs the package `kubernetes`, which is not installed.", hint="pip install 'kubernetes>=37,<38'"
        ) from None
    config: Any = kubernetes.config
    configuration = kubernetes.client.Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = 64
    try:
        selected, default_namespace = select_context(config, context)
        config.load_kube_config(context=selected, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        if context is not None or not load_pod_config(config, configuration):
            raise RequestError(
                f"No cluster is configured: {str(error).rstrip('. ')}.",
                hint="Configure one in ~/.kube/config or KUBECONFIG. --k8s context=NAME selects a context.",
            ) from None
        selected, default_namespace = None, pod_namespace()
    return KubernetesClient(kubernetes.client.ApiClient(configuration), namespace or default_namespace, selected)


def select_context(config: Any, context: str | None) -> tuple[str, str]:
    """Return a context of the kubeconfig and its namespace."""
    contexts, current = config.list_kube_config_contexts()
    match = next((entry for entry in contexts if entry["name"] == context), None) if context else current
    if match is None:
        names = ", ".join(entry["name"] for entry in contexts)
        raise config.ConfigException(f"there is no context '{context}'; there are {names}")
    return match["name"], match["context"].get("namespace") or "default"


def load_pod_config(config: Any, configuration: Any) -> bool:
    """Configure the API of the cluster in whose pod this program runs, and return whether it runs in one."""
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        return False
    return True


def pod_namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            return file.read().strip()
    except OSError:
        return "default"
