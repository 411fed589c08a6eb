"""Build and run the bindings with an older and a newer torch than `current`: those of Debian."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.torches.debian import RELEASES, Debian, ImageUnavailable, image
from tests.torches.suite import SHORT, Program

BUILT: dict[str, Debian] = {}
# One test after the other: each would compile the same sources, and uses all cores.
pytestmark = pytest.mark.xdist_group("other torches")


@pytest.fixture(params=RELEASES)
def debian(request) -> Debian:
    suite = request.param
    if suite not in BUILT:
        BUILT[suite] = Debian(suite, image_or_skip(suite))
    return BUILT[suite]


def image_or_skip(suite: str) -> str:
    """Return the image of a Debian release; skip the test without it, or fail in CI."""
    try:
        if not shutil.which("docker"):
            raise ImageUnavailable("no docker on this machine")
        return image(suite)
    except ImageUnavailable as error:
        message = f"Debian {suite}: {error}: NOTHING is tested on torch {RELEASES[suite]}"
        if "CI" in os.environ:
            pytest.fail(message)
        pytest.skip(message)


@pytest.mark.parametrize("program", SHORT, ids=str)
def test_the_programs_succeed_on_another_torch(debian: Debian, program: Program):
    assert debian.run(program)
