"""What is run on every torch: programs of tests/bindings, and how each of them has to end."""

from __future__ import annotations

from dataclasses import dataclass

# As a launcher would: one process a rank, and the first failure is the exit code.
BARE = """
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
RANK=1 LOCAL_RANK=1 "$@" & other=$!
code=0
RANK=0 LOCAL_RANK=0 "$@" || code=$?
wait "$other" || code=$?
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`by`: mpi, under hydra; ofi, without a launcher. `says`: how often what is printed."""

    name: str
    what: str
    by: str
    arguments: tuple[str, ...] = ()
    says: tuple[str, int] = ("fine", 2)
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.what}, {self.by}"

    def command(self, hydra: str, programs: str) -> list[str]:
        python = ["python3", f"{programs}/{self.name}.py", *self.arguments]
        return [hydra, "-n", "2", *python] if self.by == "mpi" else ["sh", "-c", BARE, "sh", *python]

    def judged(self, code: int, text: str) -> str:
        words, times = self.says
        if (code != 0) is not self.fails or text.count(words) < times:
            raise RuntimeError(f"{self}: ended with {code}, '{words}' not {times} times:\n{text}")
        return text


LATE = ("late", "4")  # one rank comes too late for an all_reduce of a group with 4 s of patience
MISSING = ("timed out after 4000 ms; missing: rank 1 (", 1)
SHORT = (
    Program(name="matrix", what="every collective", by="mpi", says=("checked", 2)),
    Program(name="matrix", what="every collective", by="ofi", says=("checked", 2)),
    Program(
        name="models",
        what="DDP, FSDP2, checkpoint",
        by="mpi",
        arguments=("/tmp/checkpoint",),
        says=("functional collectives are right", 2),
    ),
    Program(name="endings", what="error words", by="mpi", arguments=LATE, says=MISSING, fails=True),
)
WHOLE = (
    *SHORT,
    Program(
        name="models",
        what="DDP, FSDP2, checkpoint",
        by="ofi",
        arguments=("/tmp/checkpoint",),
        says=("functional collectives are right", 2),
    ),
    Program(name="endings", what="error words", by="ofi", arguments=LATE, says=MISSING, fails=True),
    Program(name="work_objects", what="Work, groups, refusals", by="mpi"),
    Program(name="work_objects", what="Work, groups, refusals", by="ofi"),
    Program(name="again_and_again", what="init and destroy", by="mpi"),
    Program(name="again_and_again", what="init and destroy", by="ofi"),
    Program(name="stress", what="1,000 mixed rounds", by="mpi", says=("", 0)),
)
