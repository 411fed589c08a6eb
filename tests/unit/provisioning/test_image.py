"""The Dockerfile of every stack, and the engine's commands. No real engine is run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.load.definitions import stack_names
from orchestrator.operations.image import build, dockerfile, make_image, push, save
from orchestrator.provisioning.wheelhouse import Wheel, sbom
from tests.conftest import make_stack
from tests.support.files import write_program


def test_every_stack_has_a_dockerfile() -> None:
    for name in stack_names():
        stack = load.stack(name)
        image = make_image(stack, tag=None, base=None, engine="docker")
        text = dockerfile(image)
        assert f"ORCH_STACK={name}\n" in text
        assert f"ARG BASE={image.base}\n" in text
        assert stack.runs_on_python(image.python)
        assert "USER 1000" in text
        assert "latest" not in text


def test_base_may_be_pinned_by_digest() -> None:
    pinned = f"registry.example/python:3.12-slim@sha256:{'0' * 64}"
    image = make_image(make_stack(), tag="registry.example/orch:x", base=pinned, engine="podman")
    text = dockerfile(image, ["einops==0.8.1", "rich==14.0"])
    assert f"ARG BASE={pinned}\n" in text
    assert 'orch.packages="einops==0.8.1 rich==14.0"' in text
    assert image.python == "3.12"


def test_engine_gets_the_name_of_the_image(tmp_path: Path) -> None:
    engine = write_program(tmp_path / "podman", '#!/bin/sh\necho "$*" >> "$0.log"\necho sha256:12\n')
    image = make_image(make_stack(), tag="registry.example/orch:x", base=None, engine=str(engine))
    assert (build(image, tmp_path), push(image)) == ("sha256:12", "sha256:12")
    (tmp_path / "x y.tar").touch()
    save(image, tmp_path / "x y.tar")
    commands = [line for line in (tmp_path / "podman.log").read_text().splitlines() if "inspect" not in line]
    assert commands == [
        f"build --tag registry.example/orch:x {tmp_path}",
        "push registry.example/orch:x",
        f"save --output {tmp_path}/x y.tar registry.example/orch:x",
    ]


def test_invalid_image_names_are_rejected() -> None:
    for name in ("Two Words", "-x", "a@sha256:12", "$(x)"):
        with pytest.raises(PlanError, match="not a valid image name"):
            make_image(make_stack(), tag=name, base=None, engine="docker")


def test_sbom_lists_each_wheel_with_its_hash() -> None:
    wheel = Wheel(name="torch", version="2.13.0+cpu", file="t.whl", sha256="ab" * 32, size=1)
    result = json.loads(sbom("orch:x", [wheel]))
    assert (result["bomFormat"], result["specVersion"]) == ("CycloneDX", "1.5")
    (component,) = result["components"]
    assert component["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert component["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
