"""List the programs of tests/bindings that run on every torch, and their expected results."""

from __future__ import annotations

from dataclasses import dataclass

# Start one process per rank like a launcher, and exit with the code of a failed one.
WITHOUT_LAUNCHER = """
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
RANK=1 LOCAL_RANK=1 "$@" & other=$!
code=0
RANK=0 LOCAL_RANK=0 "$@" || code=$?
wait "$other" || code=$?
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of 2 ranks, and its expected result."""

    name: str
    title: str
    transport: str  # mpi (under hydra) or ofi (without a launcher)
    arguments: tuple[str, ...] = ()
    expected_output: tuple[str, int] = ("fine", 2)  # text, and how often it is printed at least
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.title}, {self.transport}"

    def command(self, hydra: str, programs: str) -> list[str]:
        python = ["python3", f"{programs}/{self.name}.py", *self.arguments]
        return [hydra, "-n", "2", *python] if self.transport == "mpi" else ["sh", "-c", WITHOUT_LAUNCHER, "sh", *python]

    def check_output(self, code: int, text: str) -> str:
        """Return the output of the program.

        Raises:
            RuntimeError: if the exit code or the output is not the expected one.
        """
        expected, times = self.expected_output
        if (code != 0) is not self.fails or text.count(expected) < times:
            raise RuntimeError(f"{self}: ended with {code}, '{expected}' not {times} times:\n{text}")
        return text


LATE = ("late", "4")  # one rank is late for an all_reduce of a group with a timeout of 4 s
MISSING = ("timed out after 4000 ms; missing: rank 1 (", 1)
SHORT = (
    Program(name="matrix", title="every collective", transport="ofi", expected_output=("checked", 2)),
    Program(name="models", title="DDP, FSDP2, checkpoint", transport="mpi", arguments=("/tmp/checkpoint",)),
    Program(name="endings", title="error words", transport="mpi", arguments=LATE, expected_output=MISSING, fails=True),
)
ALL = (
    *SHORT,
    Program(name="matrix", title="every collective", transport="mpi", expected_output=("checked", 2)),
    Program(name="models", title="DDP, FSDP2, checkpoint", transport="ofi", arguments=("/tmp/checkpoint",)),
    Program(name="endings", title="error words", transport="ofi", arguments=LATE, expected_output=MISSING, fails=True),
    Program(name="work_objects", title="Work, groups, refusals", transport="mpi"),
    Program(name="work_objects", title="Work, groups, refusals", transport="ofi"),
    Program(name="again_and_again", title="init and destroy", transport="mpi"),
    Program(name="again_and_again", title="init and destroy", transport="ofi"),
    Program(name="stress", title="1,000 mixed rounds", transport="mpi", expected_output=("", 0)),
)
