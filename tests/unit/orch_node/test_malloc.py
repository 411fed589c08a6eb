"""A rank's malloc keeps what a step frees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from orch_node.rank.malloc import KEEP, NAME, keeping

STEPS = """
import resource
def step():
    return [bytearray(50 << 20) for _ in range(2)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


def faults(environment: dict[str, str]) -> int:
    """Pages that the kernel had to bring, of 10 steps that each take and free 100 MB."""
    run = [sys.executable, "-c", STEPS]
    return int(subprocess.run(run, env=environment, capture_output=True, check=True).stdout)


def test_what_a_step_frees_is_the_next_ones() -> None:
    bare = {"PATH": os.environ["PATH"]}
    assert faults(keeping(bare)) * 10 < faults(bare)


@pytest.mark.parametrize(
    "own",
    [
        {NAME: ""},
        {NAME: "glibc.malloc.check=3"},
        {"MALLOC_ARENA_MAX": "2"},
        {"LD_PRELOAD": "/venv/lib/libiomp5.so:/usr/lib/libtcmalloc_minimal.so.4"},
        {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
    ],
)
def test_another_choice_stays(own: dict[str, str]) -> None:
    assert keeping(own) == own


def test_what_is_preloaded_for_other_ends_changes_nothing() -> None:
    preloaded = {"LD_PRELOAD": "/malloc/libiomp5.so"}
    assert keeping(preloaded) == {**preloaded, NAME: KEEP}
