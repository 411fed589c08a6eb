"""Check programs with pipes, as `orch fetch` starts one for each node."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import ExitStack

from orchestrator.errors import ExecuteError
from orchestrator.targets.connections.program_output import PIPE_BYTES, piped_program

NOBODY = 65534


def echo_of_many(programs: int) -> None:
    """Start programs as a user without privileges, and exchange a line with each."""
    if os.getuid() == 0:
        os.setuid(NOBODY)
    with ExitStack() as stack:
        started = [
            stack.enter_context(piped_program(("cat",), lambda code, text: ExecuteError(text))) for _ in range(programs)
        ]
        for program in started:
            program.send(b"line\n")
            assert program.output.readline() == b"line\n"


def test_user_can_start_more_programs_than_have_room_for_large_pipes() -> None:
    limit = 16384 * 4096  # bytes of the pipes of a user, Linux's default
    process = multiprocessing.get_context("fork").Process(target=echo_of_many, args=(limit // PIPE_BYTES + 8,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
