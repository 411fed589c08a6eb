"""Which cluster: by the kubeconfig, or as one of its own pods."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import RequestError
from orchestrator.targets.kubernetes.api.client import Kube


def connect(context: str | None = None, namespace: str | None = None) -> Kube:
    """By the kubeconfig, or as a pod of the cluster. Raises RequestError."""
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
        chosen, own = named(config, context)
        config.load_kube_config(context=chosen, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        if context is not None or not inside(config, configuration):
            raise RequestError(
                f"No cluster is configured: {str(error).rstrip('. ')}.",
                hint="KUBECONFIG or ~/.kube/config names it; --k8s context=NAME chooses.",
            ) from None
        chosen, own = None, own_namespace()
    return Kube(kubernetes.client.ApiClient(configuration), namespace or own, chosen)


def named(config: Any, context: str | None) -> tuple[str, str]:
    """(context, its namespace) of the kubeconfig."""
    contexts, current = config.list_kube_config_contexts()
    found = next((one for one in contexts if one["name"] == context), None) if context else current
    if found is None:
        names = ", ".join(one["name"] for one in contexts)
        raise config.ConfigException(f"there is no context '{context}', only {names}")
    return found["name"], found["context"].get("namespace") or "default"


def inside(config: Any, configuration: Any) -> bool:
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        return False
    return True


def own_namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            return file.read().strip()
    except OSError:
        return "default"
