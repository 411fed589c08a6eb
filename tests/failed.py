"""Run the tests that failed in the last run once more, one after the other: python -m tests.failed.

On a busy machine one of thousands of tests that start real processes may fail by chance. A test that fails here, too,
is broken; one that passes is named, so that somebody makes it robust.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

LAST_FAILED = Path(__file__).parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST = 5  # More failures than that are not chance.
GROUP = re.compile(r"@[^\]]*$")  # pytest-xdist appends the group of a test to its id.


def main() -> int:
    """Return pytest's exit code, or 1 if there is nothing to run or too much."""
    failed = json.loads(LAST_FAILED.read_text()) if LAST_FAILED.exists() else {}
    tests = sorted(GROUP.sub("", test) for test in failed)
    if not 0 < len(tests) <= MOST:
        print(f"{len(tests)} tests failed; only 1 to {MOST} are run once more")
        return 1
    print("failed, and run once more:", *tests, sep="\n  ", flush=True)
    code = int(pytest.main(["-n0", *tests]))
    if code == 0:
        print("failed beside other tests, passed alone:", *tests, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
