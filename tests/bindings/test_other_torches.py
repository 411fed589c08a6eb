"""Build and run the bindings with an older and a newer torch than `current`: those of Debian."""

from __future__ import annotations

import functools

import pytest

from tests.conftest import require_program
from tests.torches.debian import RELEASES, Debian

# One test after the other: each would compile the same sources, and uses all cores.
pytestmark = pytest.mark.xdist_group("other torches")
# Start one process per rank like a launcher, and exit with the code of a failed one.
WITHOUT_LAUNCHER = """
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
RANK=1 LOCAL_RANK=1 "$@" & other=$!
code=0
RANK=0 LOCAL_RANK=0 "$@" || code=$?
wait "$other" || code=$?
exit "$code"
"""
LAUNCHERS = {"ofi": ("sh", "-c", WITHOUT_LAUNCHER, "sh"), "mpi": ("/mpi/bin/mpiexec.hydra", "-n", "2")}
make_debian = functools.cache(Debian)


@pytest.fixture(params=RELEASES)
def debian(request) -> Debian:
    require_program("docker")
    return make_debian(request.param)


@pytest.mark.parametrize(
    ("transport", "program", "expected", "count"),
    [
        ("ofi", ("matrix.py",), "checked", 2),
        ("mpi", ("models.py", "/tmp/checkpoint"), "fine", 2),
        ("mpi", ("endings.py", "late", "4"), "timed out after 4000 ms; missing: rank 1 (", 1),
    ],
)
def test_program_ends_as_expected_on_another_torch(
    debian: Debian, transport: str, program: tuple[str, ...], expected: str, count: int
):
    name, *arguments = program
    code, output = debian.run(*LAUNCHERS[transport], "python3", f"/programs/{name}", *arguments)
    assert (code != 0) is (name == "endings.py"), output
    assert output.count(expected) >= count, output
