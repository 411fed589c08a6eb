"""Check how a cluster is found, what is wrong with its claim, and how error responses of its API are described."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.config import incluster_config

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.targets.kubernetes import client, namespace, target
from orchestrator.targets.kubernetes.settings import KubernetesSettings
from tests.support.kubernetes_api import NAMESPACE, Api, make_client, write_kubeconfig
from tests.support.kubernetes_http import TOKEN


def test_cluster_of_a_pod_is_used_without_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, attribute in (("token", "SERVICE_TOKEN_FILENAME"), ("ca.crt", "SERVICE_CERT_FILENAME")):
        (tmp_path / name).write_text("x")
        monkeypatch.setattr(incluster_config, attribute, str(tmp_path / name))
    (tmp_path / "namespace").write_text("team\n")
    monkeypatch.setattr(client, "POD_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr("kubernetes.client.ApiClient", lambda configuration: configuration)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(RequestError, match="No cluster is configured"):
        client.connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(RequestError, match="No cluster is configured"):
        client.connect(context="lab")
    cluster = client.connect()
    assert (cluster.client.host, cluster.namespace) == ("https://10.0.0.1:443", "team")


def test_namespace_of_inventory_k8s_is_that_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:9"}, "token")
    monkeypatch.setenv("KUBECONFIG", str(path))
    (tmp_path / "k8s.toml").write_text('namespace = "nlp"\n')
    monkeypatch.setenv("ORCH_K8S_FILE", str(tmp_path / "k8s.toml"))
    assert target.cluster_of("k8s").namespace == "nlp"
    assert target.cluster_of("k8s:vision").namespace == "vision"


def test_first_current_context_of_several_kubeconfigs_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, context in (("unset", '""'), ("first", "first"), ("second", "second")):
        path = write_kubeconfig(tmp_path / name, {"server": f"http://{name}:9"}, "token")
        text = path.read_text().replace("current-context: lab", f"current-context: {context}")
        path.write_text(text.replace(": lab\n", f": {name}\n"))
    monkeypatch.setenv(
        "KUBECONFIG", os.pathsep.join(str(tmp_path / name) for name in ("none", "unset", "first", "second"))
    )
    cluster = client.connect()
    assert (cluster.context, cluster.client.configuration.host) == ("first", "http://first:9")
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    (tmp_path / "second").rename(tmp_path / ".kube/config")
    assert client.connect().context == "second"


def test_proxy_that_cannot_be_used_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kubeconfig(tmp_path / "config", {"server": "http://192.0.2.1:9"}, "token")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setitem(sys.modules, "socks", None)
    for proxy in ("socks5://127.0.0.1:9", "proxy.example:3128"):
        monkeypatch.setenv("ALL_PROXY", proxy)
        with pytest.raises(RequestError, match="The proxy of the cluster"):
            client.connect()


def test_requests_without_tls_verification_warn_about_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depend on pytest, which turns a warning into an error."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = ["openssl", "req", "-x509", "-nodes", "-subj", "/CN=x", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    api = Api()
    api.server.socket = tls.wrap_socket(api.server.socket, server_side=True)
    settings = {"server": api.url.replace("http", "https"), "insecure-skip-tls-verify": True}
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", settings, TOKEN)))
    with api:
        assert client.connect().objects("Pod", "") == []


def test_damaged_kubeconfig_and_unknown_context_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:9"}, "token")
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(RequestError, match="Expected object with name none in"):
        client.connect(context="none")
    path.write_text(path.read_text().replace("current-context: lab\n", ""))
    with pytest.raises(RequestError, match="current-context"):
        client.connect()
    assert client.connect(context="lab").namespace == NAMESPACE
    path.write_text("a: [")
    with pytest.raises(RequestError, match="while parsing"):
        client.connect()
    path.write_text("- a list")
    with pytest.raises(RequestError, match="No cluster is configured"):
        client.connect()


def test_response_that_does_not_come_from_the_api_as_the_user_is_explained() -> None:
    anonymous = json.dumps({"message": 'pods is forbidden: User "system:anonymous" cannot list resource "pods"'})
    unknown_field = '{"message": "failed to create typed patch object: .spec.x: field not declared in schema"}'
    policy = '{"message": "admission webhook \\"images\\" denied the request: images cannot come from outside"}'
    for status, body, message in (
        (302, "", "refuses the request: Found"),
        (403, policy, "The cluster refuses it: admission webhook"),
        (403, anonymous, "Authentication with the API of lab failed: pods is forbidden"),
        (500, unknown_field, "refuses the request: failed to create typed patch object"),
        (0, None, "fails: SSLError .SSL. wrong version"),
    ):
        error: object = SimpleNamespace(status=status, reason="Found", body=body)
        if body is None:
            error = OSError("SSLError\n[SSL] wrong version")
        assert re.search(message, client.to_execute_error(error, "lab").message)
    response = SimpleNamespace(data=b"<html>log in", release_conn=lambda: None)
    cluster = make_client("http://127.0.0.1:9")
    cluster.request = lambda *arguments, **_: response  # type: ignore[method-assign]
    with pytest.raises(ExecuteError, match="does not send this: <html>log in"):
        cluster.get("/version")


def test_claim_that_pods_cannot_share_or_that_lost_its_volume_is_found() -> None:
    claim = {"metadata": {"name": "orch"}, "status": {"phase": "Bound"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    cluster: Any = SimpleNamespace(path=str, get=lambda path: claim)
    severities = [namespace.check_claim(cluster, KubernetesSettings(), pods).severity for pods in (1, 2)]
    claim["spec"] = {"accessModes": ["ReadWriteMany"]}
    for claim["status"]["phase"] in ("Bound", "Lost"):
        severities.append(namespace.check_claim(cluster, KubernetesSettings(), 2).severity)
    assert severities == ["ok", "miss", "ok", "miss"]
