"""No data race and no bad memory access in the extension, as far as the compiler's sanitizers see.

CI runs the first rows; `make sanitize` all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bindings.sanitized import reports

# kind, program, arguments, ranks, words that the ranks print
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
        (kind, *of_shared_memory, 2, "[1] fine")
        for kind in ("thread", "address")
        for of_shared_memory in (
            ("shared.py", ("same-bits",)),
            ("heap.py", ("collectives",)),
            ("heap.py", ("ddp",)),
            ("heap.py", ("given-up",)),
            ("heap.py", ("interrupted",)),
        )
    ),
    ("address", "hostile.py", ("offset-beyond",), 2, "[1] fine"),
    ("address", "hostile.py", ("too-long",), 2, "[1] fine"),
]
USE_SHARED_MEMORY = ("shared.py", "heap.py", "hostile.py")
ROWS = SHORT + (LONG if "ORCH_SANITIZE_ALL" in os.environ else [])


@pytest.mark.parametrize(
    ("kind", "program", "args", "ranks", "words"),
    ROWS,
    ids=["-".join((row[0], row[1].removesuffix(".py"), *row[2])) for row in ROWS],
)
def test_the_extension_under_a_sanitizer(
    kind: str, program: str, args: tuple[str, ...], ranks: int, words: str, tmp_path: Path
) -> None:
    shared = {"ORCH_CCL_SHARED_MEMORY": str(int(program in USE_SHARED_MEMORY))}
    text, found = reports(kind, program, *args, ranks=ranks, logs=tmp_path, also=shared)
    assert not found, found[0]
    assert words in text
