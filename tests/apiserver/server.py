"""Run etcd and kube-apiserver on ports of this machine, with an administrator and a user."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.files import sha256
from tests.support.kubernetes_api import write_kubeconfig
from tests.support.ports import free_port

# Where tests/apiserver/build puts kube-apiserver and etcd.
PROGRAMS = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    / "orch/apiserver"
    / sha256(Path(__file__).with_name("build"))[:16]
)
START_SECONDS = 60.0
USER = "user"


class Server:
    """An API server whose data is in a folder. Its methods make requests as the administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = folder / "certificates"
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", USER)}
        self.url = f"https://127.0.0.1:{free_port()}"

    def request(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """Make a request, and return the parsed JSON or the text of the response.

        Raises:
            HTTPError: if the server responds with an error.
        """
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {self.tokens['admin']}", "Content-Type": f"application/{kind}"},
        )
        tls = ssl.create_default_context(cafile=self.certificates / "apiserver.crt")
        with urllib.request.urlopen(request, context=tls, timeout=20) as response:
            text = response.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def is_ready(self) -> bool:
        with suppress(OSError):  # also HTTPError
            return bool(self.request("GET", "/readyz") == "ok")
        return False

    def set_status(self, path: str, value: Any) -> Any:
        """Set the status of an object, as its controller does."""
        return self.request("PATCH", f"{path}/status", {"status": value}, "merge-patch+json")

    def write_kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig of the user, and return its path."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificates / "apiserver.crt")}
        return write_kubeconfig(path, cluster, self.tokens[USER])


@contextmanager
def run_server(folder: Path) -> Iterator[Server]:
    """Start a server, yield it when it is ready, and stop it.

    Raises:
        AssertionError: if the server does not start; it has the end of its log.
    """
    server = Server(folder)
    server.certificates.mkdir()
    tokens = folder / "tokens.csv"
    tokens.touch(0o600)
    groups = {"admin": "system:masters", USER: ""}
    tokens.write_text("".join(f'{token},{name},{name},"{groups[name]}"\n' for name, token in server.tokens.items()))
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    etcd_url = f"http://127.0.0.1:{free_port()}"
    etcd_command = [
        PROGRAMS / "etcd",
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
    ]
    apiserver_command = [
        PROGRAMS / "kube-apiserver",
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={server.url.rpartition(':')[2]}",
        f"--cert-dir={server.certificates}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://localhost",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
    ]
    log = folder / "server.log"
    with log.open("wb") as output:
        processes = [
            subprocess.Popen(command, stdout=output, stderr=output) for command in (etcd_command, apiserver_command)
        ]
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.is_ready():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield server
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)


def exists(server: Server, path: str) -> bool:
    try:
        server.request("GET", path)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True
