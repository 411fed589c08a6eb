"""Access a Kubernetes cluster through its API: connect, read, change, and explain errors.

The client package is imported only when it is used, because that takes 1 s and 126 MB.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError, RequestError
from orchestrator.model.printable import one_line
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes.manifests import KINDS, TRAINER_API, Kind
from orchestrator.targets.kubernetes.names import MANAGER
from orchestrator.targets.kubernetes.run_record import JobLocation

TEMPORARY_STATUSES = (429, 500, 502, 503, 504)
UNKNOWN_FIELD = "field not declared in schema"
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NotThere(ExecuteError):
    """The API has no such object."""

    default_hint = "It was deleted, or it is in another --k8s namespace= or --k8s context=."


class Refused(ExecuteError):
    """The API does not know the user (401), or refuses the request (403)."""


def to_execute_error(error: Exception, cluster: str) -> OrchError:
    """Convert an error of the client, with a hint about what to do."""
    status, reason = getattr(error, "status", 0), message_of(error)
    if status == 401 or (status == 403 and '"system:anonymous"' in reason):
        return Refused.about("api-authentication", cluster=cluster, reason=reason)
    if status == 403 and ' is forbidden: User "' in reason:  # a missing right, and no policy of the cluster
        return Refused.about("missing-right", reason=reason)
    if status == 403:
        return Refused(f"The cluster refuses it: {reason}.")
    if status == 404:
        return NotThere(f"{reason}.")
    # The API responds to an unknown field with status 500.
    if status in (0, *TEMPORARY_STATUSES) and UNKNOWN_FIELD not in reason:
        return ConnectionLost.about("failing-api", cluster=cluster, reason=reason)
    return ExecuteError.about("refusing-api", cluster=cluster, reason=reason)


def message_of(error: Any) -> str:
    """Return the message of the API, or of the connection."""
    try:
        message = json.loads(error.body)["message"]
    except (AttributeError, ValueError, KeyError, TypeError):
        message = getattr(error, "reason", None) or error
    return " ".join(str(message).split()).rstrip(".")


CONNECT_SECONDS = 10.0
CONTENT_TYPES = {"PATCH": "application/apply-patch+yaml"}  # of server-side apply
QUIET_SECONDS = 330.0  # after which a log is requested again
RETRIES = 4
# The API and the plural of each kind.
RESOURCES = {
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "Pod": ("v1", "pods"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Service": ("v1", "services"),
    "TrainingRuntime": (TRAINER_API, "trainingruntimes"),
    **{kind.kind: (kind.api, f"{kind.kind.lower()}s") for kind in KINDS.values()},
}


class KubernetesClient:
    """A namespace of a cluster."""

    def __init__(self, client: Any, namespace: str, context: str | None) -> None:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        self.client = client
        self.namespace = namespace
        self.context = context
        self.server_time: float | None = None  # of the last response, by the cluster's clock, in seconds since 1970
        self.connection_errors = (HTTPError, OSError)
        self.failures = (ApiException, *self.connection_errors)

    # Reading.

    def request(
        self, method: str, path: str, query: Mapping[str, str], *, body: Object | None = None, seconds: float = 60.0
    ) -> Any:
        """Send a request, which is repeated after temporary errors, and return the raw response.

        Args:
            method: of HTTP.
            path: on the server.
            query: parameters.
            body: an object, or the options of a deletion.
            seconds: the time limit for the response, and then for each part of it.

        Raises:
            NotThere: if there is no such object.
            Refused: if the user may not do that.
            ConnectionLost: if the API does not respond.
            ExecuteError: for all other errors.
        """
        from kubernetes.client import ApiException

        serialized = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            body=body,
            header_params={"Accept": "application/json", "Content-Type": CONTENT_TYPES.get(method, "application/json")},
            auth_settings=["BearerToken"],
        )
        with self.converted_errors():
            response = self.client.call_api(*serialized[:4], _request_timeout=(CONNECT_SECONDS, seconds))
            if not 200 <= response.status < 300:
                raise ApiException(http_resp=response.response)
            date = parsedate_tz(response.response.headers.get("Date", ""))
            self.server_time = mktime_tz(date) if date else None
            return response.response

    @contextmanager
    def converted_errors(self) -> Iterator[None]:
        """Convert the errors of the client and of the connection."""
        try:
            yield
        except self.failures as error:
            raise to_execute_error(error, self.context or "the cluster") from None

    def get(self, path: str, **query: str) -> Object:
        """Return the object at a path, with the errors of request()."""
        response = self.request("GET", path, query)
        with self.converted_errors():
            try:
                return dict(json.loads(response.data))
            except (ValueError, TypeError):
                start = one_line(response.data[:80].decode(errors="replace"))
                raise ExecuteError.about("no-kubernetes-api", start=start) from None
            finally:
                response.release_conn()

    def job(self, location: JobLocation) -> Object:
        """Return the job of a run, with the errors of get()."""
        return self.get(f"{self.path(KINDS[location.launcher].kind)}/{quote(location.job, safe='')}")

    def objects(self, kind: str, selector: str) -> list[Object]:
        """Return the objects of a kind in the namespace with these labels."""
        items = self.get(self.path(kind), labelSelector=selector).get("items") or []
        return [{**item, "apiVersion": RESOURCES[kind][0], "kind": kind} for item in items]

    def serves(self, kind: Kind) -> bool:
        """Return whether the API has a kind of job."""
        try:
            resources = self.get(f"/apis/{kind.api}").get("resources") or ()
        except NotThere:
            return False
        return any(resource["name"] == RESOURCES[kind.kind][1] for resource in resources)

    def installed_launchers(self) -> tuple[str, ...]:
        """Return the launchers whose kinds of jobs the API has."""
        return tuple(launcher for launcher, kind in KINDS.items() if self.serves(kind))

    def events(self, selector: str) -> list[Object]:
        """Return the events of the namespace with these fields, oldest first."""
        items = self.get(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=selector).get("items") or []
        return sorted(items, key=event_time)

    def log(self, pod: str, container: str, *, follow: bool, since: str | None, tail: int = 0) -> Iterator[str]:
        """Yield the lines of a container's log as they come, each with its time, without an incomplete last line.

        With `tail` only so many lines at its end.
        """
        limits = {"sinceTime": since, "tailLines": str(tail or "")}
        query = {"container": container, "timestamps": "true", "follow": str(follow).lower()}
        query |= {name: value for name, value in limits.items() if value}
        response = self.request("GET", f"{self.path('Pod')}/{pod}/log", query, seconds=QUIET_SECONDS)
        pending = b""
        try:
            for chunk in response.stream(1 << 16, decode_content=True):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
        except self.connection_errors as error:
            raise ConnectionLost(f"The API ended its response: {error}.") from None
        finally:
            response.close()
            response.release_conn()

    # Changing.

    def apply(self, manifest: Object, *, dry_run: bool = False, manager: str = MANAGER) -> None:
        """Create or change an object by server-side apply; fields of other managers are not taken over.

        Raises:
            ExecuteError: if the API refuses it.
        """
        path = f"{self.path(manifest['kind'])}/{manifest['metadata']['name']}"
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        body = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        try:
            self.request("PATCH", path, query, body=body).release_conn()
        except NotThere as error:
            api = RESOURCES[manifest["kind"]][0]
            if api == "v1" or error.message.startswith("namespaces "):
                raise
            comes_with = next(kind.comes_with for kind in KINDS.values() if kind.api == api)
            raise ExecuteError.about("missing-crd", manifest=manifest, comes_with=comes_with) from None

    def delete(self, item: Object) -> None:
        """Delete exactly this object, and what it owns, unless it is already gone."""
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": {"uid": item["metadata"]["uid"]},
        }
        path = f"{self.path(item['kind'])}/{item['metadata']['name']}"
        with suppress(NotThere):
            self.request("DELETE", path, {}, body=body).release_conn()

    def path(self, kind: str) -> str:
        """Return the path of the objects of a kind in the namespace."""
        api, plural = RESOURCES[kind]
        root = "/api/v1" if api == "v1" else f"/apis/{api}"
        return f"{root}/namespaces/{self.namespace}/{plural}"


def event_time(event: Object) -> str:
    """Return when an event was last seen; newer clients of Kubernetes set only its second field."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def connect(context: str | None = None, namespace: str | None = None, *, retries: int = RETRIES) -> KubernetesClient:
    """Return a connection to a namespace.

    Args:
        context: of the kubeconfig; None for its current one, or for the cluster of this pod.
        namespace: None for that of the context.
        retries: of a request after temporary errors.

    Raises:
        RequestError: if no cluster is configured.
    """
    try:
        import kubernetes.config
        from urllib3 import Retry, disable_warnings
    except ImportError:
        raise RequestError.about("kubernetes-package") from None
    disable_warnings()  # about each request, if the kubeconfig has insecure-skip-tls-verify
    config: Any = kubernetes.config
    configuration = kubernetes.client.Configuration()
    # Also changes can be repeated: objects are applied, and deleted by their uid. A Retry-After could ask for hours.
    configuration.retries = Retry(
        retries,
        status_forcelist=TEMPORARY_STATUSES,
        allowed_methods=None,
        backoff_factor=0.25,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    configuration.connection_pool_maxsize = 64
    try:
        path = os.environ.get("KUBECONFIG") or "~/.kube/config"
        merger = config.kube_config.KubeConfigMerger(path)
        # Of several files, kubectl uses the first current context, and the client package the last.
        files = merger.config_files.values()
        name = context or next(filter(None, (file.get("current-context") for file in files)), None)
        config.load_kube_config(path, context=name, client_configuration=configuration)
        default_namespace = merger.config["contexts"].get_with_name(name)["context"].safe_get("namespace") or "default"
    # The package does not check that a kubeconfig is a mapping.
    except (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        name = None
        if context is not None or not (default_namespace := pod_namespace(config, configuration)):
            raise RequestError.about("no-cluster", reason=" ".join(str(error).split()).rstrip(".")) from None
    try:
        api = kubernetes.client.ApiClient(configuration)
    except (ImportError, ValueError) as error:
        raise RequestError.about("proxy-of-cluster", reason=error) from None
    return KubernetesClient(api, namespace or default_namespace, name)


def pod_namespace(config: Any, configuration: Any) -> str:
    """Configure the API of the cluster in whose pod this program runs, and return its namespace; '' outside of pods."""
    try:
        config.load_incluster_config(client_configuration=configuration)
        return POD_NAMESPACE.read_text().strip()
    except (config.ConfigException, OSError):
        return ""
