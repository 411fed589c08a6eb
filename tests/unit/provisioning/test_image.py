"""The Dockerfile of every stack, and the engine's commands. No engine is run here."""

from __future__ import annotations

import pytest

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.operations.image import dockerfile
from orchestrator.provisioning.wheelhouse import Wheel, sbom
from orchestrator.stacks.image import make_image, python_of
from tests.conftest import make_stack


def test_every_stack_has_a_dockerfile() -> None:
    for name in load.stack_names():
        stack = load.stack(name)
        image = make_image(stack, tag=None, base=None, engine="docker")
        text = dockerfile(image)
        assert f"ORCH_STACK={name}\n" in text
        assert f"ARG BASE={image.base}\n" in text
        assert stack.runs_on_python(python_of(image.base, stack))
        assert "USER 1000" in text
        assert "latest" not in text


def test_base_may_be_pinned_by_digest() -> None:
    pinned = f"registry.example/python:3.12-slim@sha256:{'0' * 64}"
    image = make_image(make_stack(), tag="registry.example/orch:x", base=pinned, engine="podman")
    text = dockerfile(image, ["einops==0.8.1", "rich==14.0"])
    assert f"ARG BASE={pinned}\n" in text
    assert 'orch.packages="einops==0.8.1 rich==14.0"' in text
    assert python_of(pinned, image.stack) == "3.12"
    assert image.build("ctx").shell() == "podman build --tag registry.example/orch:x ctx"
    assert image.save("x y.tar").argv[-2:] == ("x y.tar", "registry.example/orch:x")
    assert image.push().argv == ("podman", "push", "registry.example/orch:x")


def test_invalid_image_names_are_rejected() -> None:
    for name in ("Two Words", "-x", "a@sha256:12", "$(x)"):
        with pytest.raises(PlanError, match="not a valid image name"):
            make_image(make_stack(), tag=name, base=None, engine="docker")


def test_sbom_lists_each_wheel_with_its_hash() -> None:
    wheel = Wheel(name="torch", version="2.13.0+cpu", file="t.whl", sha256="ab" * 32, size=1)
    result = sbom("orch:x", [wheel])
    assert (result["bomFormat"], result["specVersion"]) == ("CycloneDX", "1.5")
    (component,) = result["components"]
    assert component["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert component["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
