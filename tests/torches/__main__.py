"""Run the suite on several torches and update docs/reference/ccl.md.

`python -m tests.torches [debian:SUITE | PYTHON]...`, where PYTHON is the interpreter of an environment with a torch,
bindings built for it (`pip install ./bindings`) and impi-rt. docs/torches.json keeps the results, from which the table
is created.
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
from tests.torches.suite import ALL

RESULTS = CHECKOUT / "docs" / "torches.json"
PAGE = CHECKOUT / "docs" / "reference" / "ccl.md"
BEGIN, END = "<!-- torches: made by python -m tests.torches -->", "<!-- end of torches -->"
FACTS = (
    "import json, platform, oneccl_bindings_for_pytorch as bindings, torch; "
    "print(json.dumps([torch.__version__, platform.python_version(), bindings.__version__]))"
)


def find_target(name: str) -> Debian | Environment:
    kind, _, suite = name.partition(":")
    return Debian(suite, image(suite)) if kind == "debian" else Environment(Path(name))


def run_suite(target: Debian | Environment) -> dict[str, Any]:
    torch, python, bindings = json.loads(target.python(FACTS).splitlines()[-1])
    passed, failed = [], []
    for program in ALL:
        try:
            target.run(program)
            passed.append(str(program))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed.append(str(program))
    return {
        "torch": torch,
        "python": python,
        "bindings": bindings,
        "from": target.origin,
        "date": datetime.date.today().isoformat(),
        "passed": passed,
        "failed": failed,
    }


def table(results: list[dict[str, Any]]) -> str:
    rows = ["| torch | from | Python | passed | failed | date |", "| --- " * 6 + "|"]
    for result in sorted(results, key=lambda result: [int(p) for p in result["torch"].split("+")[0].split(".")]):
        failed = ", ".join(result["failed"]) or "-"
        passed = f"{len(result['passed'])} of {len(result['passed']) + len(result['failed'])}"
        cells = (result["torch"], result["from"], result["python"], passed, failed, result["date"])
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def write(results: list[dict[str, Any]]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    before, _, remainder = PAGE.read_text().partition(BEGIN)
    after = remainder.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torches", description=__doc__)
    everywhere = [*(f"debian:{suite}" for suite in RELEASES), sys.executable]
    parser.add_argument("where", nargs="*", metavar="WHERE", default=everywhere)
    results = {result["torch"]: result for result in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for name in parser.parse_args().where:
        new = run_suite(find_target(name))
        results[new["torch"]] = new
        write(list(results.values()))
        print(table([new]).splitlines()[-1], file=sys.stderr)
    return int(any(result["failed"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
