"""Handle the HTTP requests of the test API server."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support import kubernetes_exec

TOKEN = "good-token"
GARBAGE_SECONDS = 0.3
Json = dict[str, Any]
KIND_NAMES = "ConfigMap Secret Pod Event PersistentVolumeClaim PyTorchJob TrainJob TrainingRuntime Job Service"
KINDS = {f"{kind.lower()}s": kind for kind in KIND_NAMES.split()}
PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>\w+))?)?"
)


def error_status(code: int, message: str) -> Json:
    """Return the Status with which Kubernetes reports an error."""
    reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**status, "message": message, "reason": reasons.get(code, "InternalError"), "code": code}


def matches_labels(value: Json, selector: str) -> bool:
    """Return whether an object has the labels of a selector: `key=value`, `key` or `!key`, separated by commas."""
    labels = value["metadata"].get("labels", {})
    for requirement in filter(None, selector.split(",")):
        key, has_value, expected = requirement.partition("=")
        if key.startswith("!"):
            if key[1:] in labels:
                return False
        elif key not in labels or (has_value and labels[key] != expected):
            return False
    return True


def merge(base: Json, patch: Json) -> Json:
    """Return an object with the fields of a patch."""
    result = dict(base)
    for key, value in patch.items():
        are_objects = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if are_objects else value
    return result


def forbidden_message(match: re.Match[str], verb: str, resource: str) -> str:
    """Return the message with which RBAC refuses a request."""
    group, name = match["group"] or "", f' "{match["name"]}"' if match["name"] else ""
    kind = f"{match['plural']}.{group}" if group else match["plural"]
    reason = f'cannot {verb} resource "{resource}" in API group "{group}"'
    return f'{kind}{name} is forbidden: User "me" {reason} in the namespace "{match["namespace"]}"'


class Handler(BaseHTTPRequestHandler):
    """A connection to the server."""

    api: Any  # the server, an Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def serve(self) -> None:
        """Handle a request with any method."""
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.api.changed:
            self.api.state.requests.append((self.command, self.path))
            failure = self.take_failure()
        if failure:
            message = "the test requests this failure"
            return self.respond(failure.status, error_status(failure.status, message), failure.headers)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.respond(401, error_status(401, "Unauthorized"))
        self.route(url.path, json.loads(body) if body else {})

    do_GET = do_POST = do_PATCH = do_DELETE = serve

    def take_failure(self) -> Any:
        """Return the first failure that matches the request, and count it, or return None."""
        for failure in self.api.state.failures:
            matches = failure.method == self.command and re.search(failure.pattern, self.path)
            if matches and failure.times:
                failure.times -= 1
                return failure
        return None

    def respond(self, code: int, value: Json, headers: dict[str, str] | None = None) -> None:
        self.respond_data(code, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def respond_data(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, path: str, body: Json) -> None:
        """Call the method that handles a path."""
        if path == "/version":
            return self.respond(200, {"gitVersion": "v1.36.1", "major": "1", "minor": "36"})
        if group_match := re.fullmatch(r"/apis/([^/]+)/([^/]+)", path):
            return self.list_resources(*group_match.groups())
        match = PATH.fullmatch(path)
        if match is None or match["plural"] not in KINDS:
            return self.respond(404, error_status(404, "the server could not find the resource"))
        plural, name = match["plural"], match["name"]
        served = self.api.state.groups.get(match["group"] or "", {}).get(match["version"] or "", [])
        if refusal := self.refusal(match):  # Kubernetes checks permissions before it looks for the resource
            return self.respond(*refusal)
        if match["group"] and plural not in served:
            return self.respond_no_such_path()
        if match["sub"] in ("log", "exec") and not self.query.get("container") and self.has_containers(name):
            return self.respond(400, error_status(400, f"a container name must be specified for pod {name}"))
        if match["sub"] == "log":
            return self.stream_log(name)
        if match["sub"] == "exec":
            return kubernetes_exec.serve_exec(self, parse_qs(urlsplit(self.path).query))
        if self.command == "GET" and not name:
            return self.list(plural)
        self.handle_object(plural, name, body)

    def has_containers(self, pod: str) -> bool:
        """Return whether a pod has more than one container."""
        value = self.api.get("pods", pod)
        return value is not None and len(value["spec"].get("containers", ())) > 1

    def refusal(self, match: re.Match[str]) -> tuple[int, Json] | None:
        """Return the status for a request that the user may not make, or whose namespace does not exist."""
        plural, namespace = match["plural"], match["namespace"]
        resource = "/".join(filter(None, [plural, match["sub"]]))
        for verb in self.verbs(plural, match["name"]):
            self.api.state.used_permissions.add((verb, match["group"] or "", resource))
            if not self.is_allowed(verb, match["group"] or "", resource):
                return 403, error_status(403, forbidden_message(match, verb, resource))
        if self.command == "PATCH" and namespace != "team":
            return 404, error_status(404, f'namespaces "{namespace}" not found')
        return None

    def respond_no_such_path(self) -> None:
        """Respond as without a CRD: Go's HTTP server sends plain text, not a Status."""
        self.respond_data(404, b"404 page not found\n", {"Content-Type": "text/plain; charset=utf-8"})

    def verbs(self, plural: str, name: str | None) -> list[str]:
        """Return the verbs that the user must be allowed; an apply that creates its object also needs `create`."""
        if self.command == "PATCH":
            exists = (plural, name) in self.api.state.objects
            return ["patch"] if exists else ["patch", "create"]
        if self.command == "GET" and not name:
            return ["list"]
        if self.path.partition("?")[0].endswith("/exec"):
            return ["get", "create"]  # a websocket is a GET; since 1.35 it needs `create` as well
        return [{"GET": "get", "POST": "create", "DELETE": "delete"}[self.command]]

    def is_allowed(self, verb: str, group: str, resource: str) -> bool:
        state = self.api.state
        in_role = state.role is None or (verb, group, resource) in state.role
        return in_role and (verb, resource) not in state.denied_permissions

    def list_resources(self, group: str, version: str) -> None:
        """Respond with the resources of a version of a group."""
        plurals = self.api.state.groups.get(group, {}).get(version)
        if plurals is None:
            return self.respond_no_such_path()
        resources = [{"name": plural, "kind": KINDS[plural]} for plural in plurals]
        self.respond(200, {"kind": "APIResourceList", "groupVersion": f"{group}/{version}", "resources": resources})

    def list(self, plural: str) -> None:
        with self.api.changed:
            items = [
                value
                for (kind, _), value in sorted(self.api.state.objects.items())
                if kind == plural
                and matches_labels(value, self.query.get("labelSelector", ""))
                and self.matches_fields(value)
            ]
            version = self.api.state.version
        head = {"kind": f"{KINDS[plural]}List", "apiVersion": "v1"}
        self.respond(200, {**head, "metadata": {"resourceVersion": str(version)}, "items": items})

    def matches_fields(self, value: Json) -> bool:
        """Return whether an object has the field of the request's field selector."""
        key, _, expected = self.query.get("fieldSelector", "").partition("=")
        fields = {
            "": "",
            "reason": value.get("reason"),
            "involvedObject.uid": value.get("involvedObject", {}).get("uid"),
        }
        return bool(fields[key] == expected)

    def stream_log(self, pod: str) -> None:
        """Stream the log of a pod, until it ends if the request follows it."""
        with self.api.changed:
            log = self.api.state.logs.get(pod)
        if log is None:
            message = f'container "x" in pod "{pod}" is waiting to start: ContainerCreating'
            return self.respond(400, error_status(400, message))
        self.begin_stream()
        position, since = 0, self.query.get("sinceTime", "")
        while True:
            with self.api.changed:
                new_lines, ended = log.lines[position:], log.ended
                if not new_lines and not ended and self.query.get("follow") == "true":
                    self.api.changed.wait(0.2)
                    continue
            position += len(new_lines)
            # Kubernetes compares whole seconds.
            lines = [f"{line_time} {text}" for line_time, text in new_lines if line_time[:19] >= since[:19]]
            if not self.send_lines(lines) or (lines and self.drop_stream()):
                return
            if not new_lines:
                return self.end_stream()

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_lines(self, lines: list[str]) -> bool:
        """Send lines as a chunk, and return whether the client is still connected."""
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            if data:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
        except OSError:
            self.close_connection = True
            return False
        return True

    def drop_stream(self) -> bool:
        """End the stream in the middle of a chunk if State.drop_streams is not 0, and return whether it has ended."""
        with self.api.changed:
            if not self.api.state.drop_streams:
                return False
            self.api.state.drop_streams -= 1
        self.close_connection = True
        self.wfile.write(b"ff\r\n{torn")
        return True

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def handle_object(self, plural: str, name: str, body: Json) -> None:
        """Patch, return or delete an object."""
        with self.api.changed:
            value = self.api.state.objects.get((plural, name))
            if self.command == "PATCH":
                return self.patch(plural, name, body)
            if value is None:
                return self.respond(404, error_status(404, f'{plural} "{name}" not found'))
            if self.command == "GET":
                return self.respond(200, value)
            uid = (body.get("preconditions") or {}).get("uid")
            if uid not in (None, value["metadata"]["uid"]):
                return self.respond(409, error_status(409, "the UID in the precondition differs"))
            if plural == "pods" and self.api.state.grace_seconds:
                self.api.terminate(name)
            else:
                self.api.remove(plural, name)
            # Kubernetes collects garbage with a delay.
            threading.Timer(GARBAGE_SECONDS, self.api.collect, [value["metadata"]["uid"]]).start()
        self.respond(200, {"kind": "Status", "status": "Success"})

    def patch(self, plural: str, name: str, body: Json) -> None:
        """Apply an object server-side."""
        if self.headers["Content-Type"] != "application/apply-patch+yaml" or not self.query.get("fieldManager"):
            return self.respond(415, error_status(415, "this server supports only server-side apply"))
        stored = self.api.state.objects.get((plural, name), {})
        result = merge(stored, body)
        if self.query.get("dryRun"):
            return self.respond(200, result)
        self.respond(200 if stored else 201, self.api.put(plural, result))
