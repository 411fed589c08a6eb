"""Run tests of PyTorch's suite of process groups, one after the other, in this rank.

    distributed_tests.py BACKEND FOLDER NAME...

Prints a line when a test begins and one with its result. A rank exits after its first failure,
because the other ranks would wait for it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import unittest
import warnings
from datetime import timedelta
from pathlib import Path

from start import RANK, SIZE, print_line

BACKEND, FOLDER, NAMES = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
SECONDS = 60
os.environ |= {"BACKEND": BACKEND, "WORLD_SIZE": str(SIZE), "TEMP_DIR": str(FOLDER)}
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")

from torch.testing._internal.common_distributed import TEST_SKIPS, DistTestCases  # noqa: E402

for backends in DistTestCases.backend_feature.values():
    if "gloo" in backends:
        backends.add(BACKEND)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

CODES = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    pass


def names() -> list[str]:
    return sorted(name for name in dir(Suite) if name.startswith("test_"))


def make_suite(name: str) -> Suite:
    folder = FOLDER / name
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    distributed_test.Barrier.barrier_id = 0
    suite = Suite(name)
    suite.rank, suite.file_name = RANK, str(folder / "store")
    return suite


def run(suite: Suite, name: str) -> None:
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, SECONDS)
    dist.init_process_group(
        BACKEND, init_method=f"file://{suite.file_name}", rank=RANK, world_size=SIZE, timeout=timedelta(seconds=seconds)
    )
    suite._barrier()
    torch.manual_seed(0)
    getattr(suite, name)()
    suite._barrier()
    dist.destroy_process_group()


def skip_reason(name: str) -> str:
    """Return why gloo skips a test. On ccl, tests that are only for gloo run as well."""
    test = getattr(Suite, name)
    if BACKEND == "gloo" and getattr(test, "__unittest_skip__", False):
        return f"skipped {test.__unittest_skip_why__}"
    return ""


def outcome(suite: Suite, name: str) -> str:
    try:
        run(suite, name)
    except unittest.SkipTest as skip:
        dist.destroy_process_group()
        return f"skipped {skip}"
    except SystemExit as skip:
        if skip.code not in CODES:
            return f"failed exit code {skip.code}"
        dist.destroy_process_group()
        return f"skipped {CODES[skip.code]}"
    except Exception as error:
        return f"failed {type(error).__name__}: {error}"
    return "passed"


if __name__ == "__main__":
    if NAMES == ["--list"]:
        print("\n".join(names()))
        sys.exit(0)
    torch.set_num_threads(1)
    for name in NAMES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            faulthandler.dump_traceback_later(SECONDS + 30, exit=True)
            print_line("begins", name)
            result = skip_reason(name) or outcome(make_suite(name), name)
            print_line("ends", name, " ".join(result.split()))
            if result.startswith("failed"):
                os._exit(1)
    faulthandler.cancel_dump_traceback_later()
