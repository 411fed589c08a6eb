"""The bindings on a torch before and one after `current`'s: Debian's own, built and run there."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.torches.debian import RELEASES, Debian, ImageUnavailable, image
from tests.torches.suite import SHORT, Program

BUILT: dict[str, Debian] = {}
# One after the other: each would compile the same, and computes on all cores.
pytestmark = pytest.mark.xdist_group("other torches")


@pytest.fixture(params=RELEASES)
def debian(request) -> Debian:
    suite = request.param
    if suite not in BUILT:
        BUILT[suite] = Debian(suite, image_or_skip(suite))
    return BUILT[suite]


def image_or_skip(suite: str) -> str:
    """Where it cannot be had a skip says so; in CI that is a failure."""
    try:
        if not shutil.which("docker"):
            raise ImageUnavailable("no docker on this machine")
        return image(suite)
    except ImageUnavailable as error:
        words = f"Debian {suite}: {error}: NOTHING is tested on torch {RELEASES[suite]}"
        if "CI" in os.environ:
            pytest.fail(words)
        pytest.skip(words)


@pytest.mark.parametrize("program", SHORT, ids=str)
def test_what_holds_on_current_holds_there(debian: Debian, program: Program):
    assert debian.run(program)


def test_the_build_tells_its_torch(debian: Debian):
    code = "import oneccl_bindings_for_pytorch as o, torch; print(o.__version__, torch.__version__)"
    built, there = debian.python(code).split()[-2:]
    assert built.startswith(there.split("+")[0] + "+orch.")
    assert there.startswith(RELEASES[debian.suite])


def test_it_is_refused_by_another_torch(debian: Debian):
    code = (
        "import importlib.metadata as m; m.version = lambda name: '2.13.0+cpu'\n"
        "try: import oneccl_bindings_for_pytorch\n"
        "except ImportError as error: print(error)"
    )
    said = debian.python(code)
    assert f"was built for torch {RELEASES[debian.suite]}, but torch 2.13 is installed" in said
