"""`python -m tests.torches [debian:SUITE | PYTHON]...`: the suite there, and docs/reference/ccl.md's table.

A PYTHON is one of an environment with a torch, our bindings built for it (`pip install ./bindings`)
and impi-rt. What each came to is kept in docs/torches.json, of which the table is made.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from tests.torches.debian import CHECKOUT, RELEASES, Debian, image
from tests.torches.environment import Environment
from tests.torches.suite import WHOLE

RESULTS = CHECKOUT / "docs" / "torches.json"
PAGE = CHECKOUT / "docs" / "reference" / "ccl.md"
BEGIN, END = "<!-- torches: made by python -m tests.torches -->", "<!-- end of torches -->"
FACTS = (
    "import json, platform, oneccl_bindings_for_pytorch as ours, torch; "
    "print(json.dumps([torch.__version__, platform.python_version(), ours.__version__]))"
)


def where(name: str) -> Debian | Environment:
    kind, _, suite = name.partition(":")
    return Debian(suite, image(suite)) if kind == "debian" else Environment(Path(name))


def tried(place: Debian | Environment) -> dict[str, Any]:
    torch, python, ours = json.loads(place.python(FACTS).splitlines()[-1])
    passed, failed = [], []
    for program in WHOLE:
        try:
            place.run(program)
            passed.append(str(program))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed.append(str(program))
    return {
        "torch": torch,
        "python": python,
        "bindings": ours,
        "from": place.origin,
        "date": datetime.date.today().isoformat(),
        "passed": passed,
        "failed": failed,
    }


def table(results: list[dict[str, Any]]) -> str:
    rows = ["| torch | from | Python | passed | failed | on |", "| --- " * 6 + "|"]
    for one in sorted(results, key=lambda one: [int(p) for p in one["torch"].split("+")[0].split(".")]):
        failed = ", ".join(one["failed"]) or "-"
        passed = f"{len(one['passed'])} of {len(one['passed']) + len(one['failed'])}"
        words = (one["torch"], one["from"], one["python"], passed, failed, one["date"])
        rows.append(f"| {' | '.join(words)} |")
    return "\n".join(rows)


def write(results: list[dict[str, Any]]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torches", description=__doc__)
    everywhere = [*(f"debian:{suite}" for suite in RELEASES), sys.executable]
    parser.add_argument("where", nargs="*", metavar="WHERE", default=everywhere)
    known = {one["torch"]: one for one in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for name in parser.parse_args().where:
        new = tried(where(name))
        known[new["torch"]] = new
        write(list(known.values()))
        print(table([new]).splitlines()[-1], file=sys.stderr)
    return int(any(one["failed"] for one in known.values()))


if __name__ == "__main__":
    sys.exit(main())
