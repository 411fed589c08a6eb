"""The Dockerfile of every stack, and the engine's commands. No engine is run here."""

from __future__ import annotations

import pytest

from orchestrator import load
from orchestrator.errors import PlanError
from orchestrator.versions.image import image_of, python_of
from tests.conftest import make_stack


@pytest.mark.parametrize("name", load.stack_names())
def test_every_stack_has_a_dockerfile(name: str) -> None:
    stack = load.stack(name)
    image = image_of(stack, tag=None, base=None, engine="docker")
    text = image.dockerfile()
    assert f"ORCH_STACK={name}\n" in text
    assert f"ARG BASE={image.base}\n" in text
    assert stack.runs_on_python(python_of(image.base, stack))
    assert "USER 1000" in text
    assert "latest" not in text


def test_a_base_may_be_pinned_by_digest() -> None:
    pinned = f"registry.example/python:3.12-slim@sha256:{'0' * 64}"
    image = image_of(make_stack(), tag="registry.example/orch:x", base=pinned, engine="podman")
    assert f"ARG BASE={pinned}\n" in image.dockerfile()
    assert python_of(pinned, image.stack) == "3.12"
    assert image.build("ctx").shell() == "podman build --tag registry.example/orch:x ctx"
    assert image.save("x y.tar").argv[-2:] == ("x y.tar", "registry.example/orch:x")


@pytest.mark.parametrize("name", ["Two Words", "-x", "a@sha256:12", "$(x)"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(PlanError, match="no name of an image"):
        image_of(make_stack(), tag=name, base=None, engine="docker")
