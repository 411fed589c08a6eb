"""Check the extension for data races and invalid memory accesses with the compiler's sanitizers.

CI runs the cases of SHORT; `make sanitize` runs all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bindings.sanitized import reports

# sanitizer, program, arguments, ranks, a part of the output
SHORT = [("thread", "stress.py", ("60", "8"), 2, "[0] fine")]
LONG = [
    (kind, *case)
    for kind in ("thread", "address")
    for case in (
        ("stress.py", (), 3, "[2] fine"),
        ("work_objects.py", (), 2, "fine"),
        ("again_and_again.py", (), 2, "fine"),
        ("endings.py", ("late-twice", "3"), 3, "missing: rank 1 ("),
        ("endings.py", ("raise",), 3, ": rank 1 ("),
        ("endings.py", ("kill",), 3, "its process has ended"),
        ("endings.py", ("pending",), 2, "leaves work pending"),
        ("shared.py", ("same-bits",), 2, "[1] fine"),
        ("heap.py", ("collectives",), 2, "[1] fine"),
        ("heap.py", ("ddp",), 2, "[1] fine"),
        ("heap.py", ("given-up",), 2, "[1] fine"),
        ("heap.py", ("interrupted",), 2, "[1] fine"),
        ("hostile.py", ("offsets",), 2, "[1] fine"),
    )
]
USE_SHARED_MEMORY = ("shared.py", "heap.py", "hostile.py")
CASES = SHORT + (LONG if "ORCH_SANITIZE_ALL" in os.environ else [])


@pytest.mark.parametrize(
    ("kind", "program", "args", "ranks", "message"),
    CASES,
    ids=["-".join((case[0], case[1].removesuffix(".py"), *case[2])) for case in CASES],
)
def test_the_extension_under_a_sanitizer(
    kind: str, program: str, args: tuple[str, ...], ranks: int, message: str, tmp_path: Path
) -> None:
    shared = {"ORCH_CCL_SHARED_MEMORY": str(int(program in USE_SHARED_MEMORY))}
    text, errors = reports(kind, program, *args, ranks=ranks, logs=tmp_path, extra_env=shared)
    assert not errors, errors[0]
    assert message in text
