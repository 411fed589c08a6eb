"""Check how settings and patches are read from files and options."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from orchestrator.errors import PlanError, RequestError
from orchestrator.targets.kubernetes.inputs import kubernetes_settings, read_patch
from orchestrator.targets.kubernetes.settings import KubernetesSettings


def test_values_of_settings_are_parsed() -> None:
    assert kubernetes_settings(None, ["share_cores=true", "uid=7"]) == KubernetesSettings(share_cores=True, uid=7)
    assert kubernetes_settings(None, [], "registry.example/orch").image == "registry.example/orch"
    with pytest.raises(RequestError, match="image = 'two words'"):
        kubernetes_settings(None, [], "two words")
    for assignment, message, hint in (
        ("share_cores=maybe", "valid boolean", "=true"),
        ("uid=x", "valid integer", "gpu=8"),
        ("memoryy=x", "unknown key", "Did you mean 'memory'?"),
        ("env=A", "unknown key", "env.NAME=VALUE"),
        ("image=1", "--k8s image: unknown key", "--image"),
        ("namespace=Team A", "namespace = 'Team A': not a valid Kubernetes name", ""),
        ("mount=data", "mount = 'data': not an absolute path", ""),
        ("uid=0", "greater than 0", ""),
        ("gpu=-1", "greater than or equal to 0", ""),
    ):
        with pytest.raises(RequestError, match=message) as error:
            kubernetes_settings(None, [assignment])
        assert hint in error.value.hint


def test_settings_file_has_the_same_keys(tmp_path: Path) -> None:
    path = tmp_path / "k8s.toml"
    path.write_text(
        'queue = "team-a"\ntolerations = ["spot:NoExecute"]\nnode_affinity = ["!spot"]\n'
        '[env]\nA = "b"\n[secret_env]\nC = "d/e"\n'
    )
    loaded = kubernetes_settings(path, ["env.B=c"])
    assert (loaded.queue, loaded.tolerations, loaded.node_affinity) == ("team-a", ("spot:NoExecute",), ("!spot",))
    assert (loaded.env, loaded.secret_env) == ({"A": "b", "B": "c"}, {"C": "d/e"})


def test_patch_file_must_be_a_list(tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text("- {kind: Job, op: add, path: /spec/x, value: 1}\n")
    assert read_patch(path) == ({"kind": "Job", "op": "add", "path": "/spec/x", "value": 1},)
    for text, reason in (("kind: Job", "valid list"), ("- 3", "valid dictionary"), ("[", "flow node")):
        path.write_text(text)
        with pytest.raises(RequestError, match=f"--k8s-patch .*{reason}") as caught:
            read_patch(path)
        assert "pydantic" not in caught.value.message


def test_numbers_of_cpus_are_exact() -> None:
    for text, cpus in (("500m", Fraction(1, 2)), ("1.5", Fraction(3, 2)), ("16", 16)):
        assert KubernetesSettings(cpu=text).cpus == cpus
    for text in ("", "0", "1 m", "m", "1.2.3", "0x10", "1e", "-5", "5%"):
        with pytest.raises(PlanError):
            KubernetesSettings(cpu=text).cpus  # noqa: B018
