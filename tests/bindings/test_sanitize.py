"""Check the extension for data races and invalid memory accesses with the compiler's sanitizers.

CI runs the cases of SHORT; `make sanitize` runs all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bindings.sanitized import reports

# sanitizer, program, arguments, ranks, a part of the output
SHORT = [("thread", "stress.py", ("60",), 2, "[0] fine"), ("thread", "aborts.py", (), 2, "[0] fine")]
LONG = [
    ("thread", "endings.py", ("late-twice", "3"), 3, "missing: rank 1 ("),
    ("thread", "stress.py", (), 3, "[2] fine"),
    ("thread", "work_objects.py", (), 2, "fine"),
    ("thread", "again_and_again.py", (), 2, "fine"),
    ("thread", "endings.py", ("late", "4"), 3, "missing: rank 1 ("),
    ("thread", "endings.py", ("raise",), 3, ": rank 1 ("),
    ("thread", "endings.py", ("pending",), 2, "leaves work pending"),
    ("address", "stress.py", (), 3, "[2] fine"),
    ("address", "work_objects.py", (), 2, "fine"),
    ("address", "again_and_again.py", (), 2, "fine"),
    ("address", "endings.py", ("late-twice", "3"), 3, "missing: rank 1 ("),
    ("address", "endings.py", ("raise",), 3, ": rank 1 ("),
    ("address", "endings.py", ("kill",), 3, "its process has ended"),
    ("address", "endings.py", ("pending",), 2, "leaves work pending"),
    *(
        (kind, *shared_memory_case, 2, "[1] fine")
        for kind in ("thread", "address")
        for shared_memory_case in (
            ("shared.py", ("same-bits",)),
            ("heap.py", ("collectives",)),
            ("heap.py", ("ddp",)),
            ("heap.py", ("given-up",)),
            ("heap.py", ("interrupted",)),
        )
    ),
    ("address", "hostile.py", ("offsets",), 2, "[1] fine"),
    ("address", "hostile.py", ("empty",), 2, "[1] fine"),
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
