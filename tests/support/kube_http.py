"""The HTTP of the test API server: requests, answers, streams."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support import kube_exec, kube_pod_security

TOKEN = "good-token"
GARBAGE_SECONDS = 0.3
Json = dict[str, Any]
KINDS = {
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "pods": "Pod",
    "events": "Event",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "nodes": "Node",
    "pytorchjobs": "PyTorchJob",
    "mpijobs": "MPIJob",
    "trainjobs": "TrainJob",
    "trainingruntimes": "TrainingRuntime",
    "jobs": "Job",
    "services": "Service",
    "workloads": "Workload",
    "localqueues": "LocalQueue",
    "resourcequotas": "ResourceQuota",
}
PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>\w+))?)?"
)


def error_status(code: int, message: str) -> Json:
    reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reasons.get(code, "InternalError"),
        "code": code,
    }


def matches_labels(value: Json, selector: str) -> bool:
    labels = value["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        key, equals, wanted = part.partition("=")
        if (labels.get(key) != wanted) if equals else (key not in labels):
            return False
    return True


def field_values(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, value) of every field; a list is one."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from field_values(one, f"{path}.{key}")
    else:
        yield path, json.dumps(value, sort_keys=True)


def merge(base: Json, patch: Json) -> Json:
    found = dict(base)
    for key, value in patch.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merge(found[key], value) if both else value
    return found


def suspend(job: Json) -> None:
    """Suspend a job that has a queue, as the webhook of Kueue does."""
    if "kueue.x-k8s.io/queue-name" in job["metadata"].get("labels", {}):
        spec = job["spec"]
        spec.get("runPolicy", spec)["suspend"] = True


def forbidden_message(match: re.Match[str], verb: str, resource: str) -> str:
    """As RBAC says it."""
    group, what = match["group"] or "", f' "{match["name"]}"' if match["name"] else ""
    kind = f"{match['plural']}.{group}" if group else match["plural"]
    asked = f'cannot {verb} resource "{resource}" in API group "{group}"'
    return f'{kind}{what} is forbidden: User "me" {asked} in the namespace "{match["namespace"]}"'


class Handler(BaseHTTPRequestHandler):
    """One request; `api` is the server that it is made to."""

    api: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def serve(self) -> None:
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.api.changed:
            self.api.state.requests.append((self.command, self.path))
            self.api.state.bodies.append(body)
            planned = self.planned(url.path)
        if planned:
            return self.answer(planned.status, error_status(planned.status, "as the test wants"), planned.headers)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not known and not self.api.state.allow_anonymous:
            return self.answer(401, error_status(401, "Unauthorized"))
        self.route(url.path, json.loads(body) if body else {})

    do_GET = do_POST = do_PATCH = do_DELETE = serve

    def planned(self, path: str) -> Any:
        for failure in self.api.state.failures:
            fits = failure.method == self.command and re.search(failure.pattern, self.path)
            if fits and failure.times:
                failure.times -= 1
                return failure
        return None

    def answer(self, code: int, value: Json, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, path: str, body: Json) -> None:
        if path.endswith("/selfsubjectaccessreviews"):
            return self.review(body)
        if path in ("/version", "/api", "/apis", "/api/v1"):
            return self.answer(200, self.roots(path))
        if found := re.fullmatch(r"/apis/([^/]+)(?:/([^/]+))?", path):
            return self.discover(*found.groups())
        match = PATH.fullmatch(path)
        if match is None or match["plural"] not in KINDS:
            return self.answer(404, error_status(404, "the server could not find the resource"))
        plural, name = match["plural"], match["name"]
        known = self.api.state.groups.get(match["group"] or "", {}).get(match["version"] or "", [])
        if refusal := self.refusal(match):  # rights come before what there is
            return self.answer(*refusal)
        if match["group"] and plural not in known:
            return self.no_such_path()
        if match["sub"] == "log":
            return self.log(name)
        if match["sub"] == "exec":
            return kube_exec.serve_exec(self, parse_qs(urlsplit(self.path).query))
        if self.command == "GET" and not name:
            return self.watch(plural) if self.query.get("watch") == "true" else self.list(plural)
        self.one(plural, name, body)

    def refusal(self, match: re.Match[str]) -> tuple[int, Json] | None:
        """Of what the caller may not do, or of a namespace that is not there."""
        plural, gone = match["plural"], match["namespace"]
        resource = "/".join(filter(None, [plural, match["sub"]]))
        for verb in self.verbs(plural, match["name"]):
            if not self.allowed(verb, match["group"] or "", resource):
                return 403, error_status(403, forbidden_message(match, verb, resource))
        if self.command == "PATCH" and gone not in self.api.state.namespaces:
            return 404, error_status(404, f'namespaces "{gone}" not found')
        return None

    def no_such_path(self) -> None:
        """Where no CRD is: no Status, but the plain words of Go's HTTP server."""
        self.answer_plain(404, b"404 page not found\n")

    def answer_plain(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def verbs(self, plural: str, name: str | None) -> list[str]:
        """What the caller needs; an apply that makes its object needs `create`, too."""
        if self.command == "PATCH":
            known = (plural, name) in self.api.state.objects
            return ["patch"] if known else ["patch", "create"]
        if self.command == "GET" and not name:
            return ["watch" if self.query.get("watch") == "true" else "list"]
        if self.path.partition("?")[0].endswith("/exec"):
            return ["get", "create"]  # a websocket is a GET; since 1.35 it must be allowed to create
        return [{"GET": "get", "POST": "create", "DELETE": "delete"}[self.command]]

    def allowed(self, verb: str, group: str, resource: str, *, asked: bool = False) -> bool:
        """`asked`: it is only a question."""
        state = self.api.state
        if not asked:
            state.used_permissions.add((verb, group, resource))
        in_role = state.role is None or (verb, group, resource) in state.role
        return in_role and (verb, resource) not in state.denied_permissions

    def discover(self, group: str, version: str | None) -> None:
        known = self.api.state.groups.get(group)
        if known is None or (version and version not in known):
            return self.no_such_path()
        if version is None:
            versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in known]
            return self.answer(
                200, {"kind": "APIGroup", "name": group, "versions": versions, "preferredVersion": versions[0]}
            )
        resources = [
            {
                "name": name,
                "namespaced": True,
                "kind": KINDS[name],
                "singularName": "",
                "verbs": ["create", "get", "list", "watch", "patch", "delete"],
            }
            for name in known[version]
        ]
        head = {"kind": "APIResourceList", "apiVersion": "v1"}
        self.answer(200, {**head, "groupVersion": f"{group}/{version}", "resources": resources})

    def roots(self, path: str) -> Json:
        """What kubectl asks first."""
        if path == "/version":
            return {"gitVersion": "v1.36.1", "major": "1", "minor": "36"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/api/v1":
            resources = [
                {
                    "name": name,
                    "namespaced": name != "nodes",
                    "kind": KINDS[name],
                    "singularName": "",
                    "verbs": ["create", "get", "list"],
                }
                for name in ("configmaps", "secrets", "pods", "persistentvolumeclaims")
            ]
            head = {"kind": "APIResourceList", "apiVersion": "v1"}
            return {**head, "groupVersion": "v1", "resources": resources}
        groups = []
        for group, served in self.api.state.groups.items():
            versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in served]
            groups.append({"name": group, "versions": versions, "preferredVersion": versions[0]})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def review(self, body: Json) -> None:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, [asked["resource"], asked.get("subresource")]))
        allowed = self.allowed(asked["verb"], asked["group"], resource, asked=True)
        self.answer(201, {**body, "status": {"allowed": allowed}})

    def list(self, plural: str) -> None:
        with self.api.changed:
            found = [
                value
                for (kind, _), value in sorted(self.api.state.objects.items())
                if kind == plural
                and matches_labels(value, self.query.get("labelSelector", ""))
                and self.field_selected(value)
            ]
            version = self.api.state.version
        head = {"kind": f"{KINDS[plural]}List", "apiVersion": "v1"}
        self.answer(200, {**head, "metadata": {"resourceVersion": str(version)}, "items": found})

    def field_selected(self, value: Json) -> bool:
        key, _, wanted = self.query.get("fieldSelector", "").partition("=")
        have = {
            "": "",
            "reason": value.get("reason"),
            "involvedObject.name": value.get("involvedObject", {}).get("name"),
        }
        return have[key] == wanted

    def watch(self, plural: str) -> None:
        since = int(self.query["resourceVersion"])
        self.begin_stream()
        if since < self.api.state.oldest_version:
            return self.send_lines([json.dumps({"type": "ERROR", "object": error_status(410, "too old")})])
        deadline = time.monotonic() + float(self.query.get("timeoutSeconds", "60"))
        while time.monotonic() < deadline:
            with self.api.changed:
                new = [one for one in self.api.state.history if one[0] > since]
                if not new:
                    self.api.changed.wait(0.2)
            for version, change, kind, value in new:
                since = version
                fits = kind == plural and matches_labels(value, self.query.get("labelSelector", ""))
                if fits and not self.send_lines([json.dumps({"type": change, "object": value})]):
                    return
            if new and self.drop():
                return
        self.end_stream()

    def log(self, pod: str) -> None:
        with self.api.changed:
            log = self.api.state.logs.get(pod)
        if log is None:
            message = f'container "x" in pod "{pod}" is waiting to start: ContainerCreating'
            return self.answer(400, error_status(400, message))
        self.begin_stream()
        at, since = 0, self.query.get("sinceTime", "")
        while True:
            with self.api.changed:
                new, ended = log.lines[at:], log.ended
                if not new and not ended and self.query.get("follow") == "true":
                    self.api.changed.wait(0.2)
                    continue
            at += len(new)
            # The API's own comparison is by whole seconds.
            lines = [f"{when} {text}" for when, text in new if when[:19] >= since[:19]]
            if not self.send_lines(lines) or (lines and self.drop()):
                return
            if not new:
                return self.end_stream()

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_lines(self, lines: list[str]) -> bool:
        """False if nobody listens any more."""
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            if data:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
        except OSError:
            self.close_connection = True
            return False
        return True

    def drop(self) -> bool:
        """End a stream in the middle of a chunk, if the test wants it."""
        with self.api.changed:
            if not self.api.state.drop_streams:
                return False
            self.api.state.drop_streams -= 1
        self.close_connection = True
        self.wfile.write(b"ff\r\n{torn")
        return True

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def one(self, plural: str, name: str, body: Json) -> None:
        with self.api.changed:
            known = self.api.state.objects.get((plural, name))
            if self.command == "PATCH":
                return self.patch(plural, name, body)
            if known is None:
                return self.answer(404, error_status(404, f'{plural} "{name}" not found'))
            if self.command == "GET":
                return self.answer(200, known)
            wanted = (body.get("preconditions") or {}).get("uid")
            if wanted not in (None, known["metadata"]["uid"]):
                return self.answer(409, error_status(409, "the UID in the precondition differs"))
            if plural == "pods" and self.api.state.grace_seconds:
                self.api.terminate(name)
            else:
                self.api.remove(plural, name)
            # The garbage collector comes later.
            threading.Timer(GARBAGE_SECONDS, self.api.collect, [known["metadata"]["uid"]]).start()
        self.answer(200, {"kind": "Status", "status": "Success"})

    def patch(self, plural: str, name: str, body: Json) -> None:
        manager = self.query.get("fieldManager")
        if self.headers["Content-Type"] != "application/apply-patch+yaml" or not manager:
            return self.answer(415, error_status(415, "only server-side apply is spoken here"))
        owners = dict(self.api.state.owners.get((plural, name), {}))
        mine = {path: text for path, text in field_values(body) if path.count(".") > 1}
        known = self.api.state.objects.get((plural, name), {})
        have = dict(field_values(known))
        taken = [path for path, text in mine.items() if owners.get(path, manager) != manager and have.get(path) != text]
        if taken and self.query.get("force") != "true":
            message = f'Apply failed with 1 conflict: conflict with "{owners[taken[0]]}": {taken[0]}'
            return self.answer(409, error_status(409, message))
        judged = plural == "pods" and not known and self.api.state.restricted
        if judged and (message := kube_pod_security.refusal_message(name, body["spec"])):
            return self.answer(403, error_status(403, message))
        made = merge(known, body)
        if not known and body["kind"] in self.api.state.queued_kinds:
            suspend(made)
        if self.query.get("dryRun"):
            return self.answer(200, made)
        self.api.state.owners[plural, name] = owners | dict.fromkeys(mine, manager)
        self.answer(200 if known else 201, self.api.put(plural, made))
