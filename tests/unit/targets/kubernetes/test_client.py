"""Check how a cluster is found, and how error responses of its API are described."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.config import incluster_config

from orchestrator.errors import RequestError
from orchestrator.targets.kubernetes import client


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
