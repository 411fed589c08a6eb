"""`make fresh`: README's two commands on bare machines, one container after the other.

Standard library only: it runs before anything is set up. What each case printed is in build/fresh.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.fresh.cases import CASES
from tests.fresh.index import Index, index_of
from tests.fresh.result import STEPS, Result, result_of, table

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
LOGS = CHECKOUT / "build" / "fresh"
PATH = "/usr/local/bin:/usr/bin:/bin"


def said(*command: str) -> str:
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def configuration() -> Index:
    """A machine without pip has none."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    return index_of(subprocess.run(pip, stdout=subprocess.PIPE, text=True).stdout.splitlines())


def container(name: str, image: str, index: Index, steps: tuple[str, ...]) -> list[str]:
    case = CASES[name]
    words = ["docker", "run", "--rm", "--interactive", "--init", "--user", case.user]
    words += ["--name", f"orch-fresh-{name}-{os.getpid()}", "--label", f"orch.fresh={CHECKOUT}"]
    if case.user != "root":
        words += ["--env", f"PATH={PATH}", "--security-opt", "no-new-privileges"]
    if case.locked_home:
        words += ["--tmpfs", "/locked:ro,mode=0555", "--env", "HOME=/locked"]
    if case.one_core:
        words += ["--cpuset-cpus", "0"]
    if case.small_tmp:
        words += ["--tmpfs", "/tmp:size=256m,mode=1777,exec"]
    words += [*index.arguments(case), "--volume", f"{HERE / 'begin'}:/begin:ro"]
    return [*words, image, "/begin", case.folder, case.umask, case.build, *steps]


def run(name: str, index: Index, steps: tuple[str, ...]) -> Result:
    command = container(name, said(str(HERE / "image"), CASES[name].suite), index, steps)
    clone = subprocess.Popen(["git", "archive", "--format=tar", "HEAD"], cwd=CHECKOUT, stdout=subprocess.PIPE)
    path = LOGS / f"{name}.log"
    with clone, path.open("w") as log:
        code = subprocess.run(command, stdin=clone.stdout, stdout=log, stderr=log).returncode
    return result_of(code, path.read_text(errors="replace"), steps)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.fresh", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--demo", action="store_true", help="the first command alone")
    parser.add_argument("--list", action="store_true", help="tell the cases")
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}. There are: {', '.join(CASES)}.")
    if asked.list:
        print("\n".join(f"{name}: {case}" for name, case in CASES.items()))
        return 0
    return tell(run_all(asked.cases or list(CASES), STEPS[:1] if asked.demo else STEPS))


def run_all(names: list[str], steps: tuple[str, ...]) -> dict[str, Result]:
    if said("git", "status", "--porcelain"):
        print("fresh: what is not committed is not in it, as in a clone", file=sys.stderr)
    LOGS.mkdir(parents=True, exist_ok=True)
    index = configuration()
    results = {}
    for name in names:
        print(f"fresh: {name}: {CASES[name]}; log: {LOGS / name}.log", file=sys.stderr)
        results[name] = run(name, index, steps)
        print(f"fresh: {name}: {results[name].verdict(CASES[name])}", file=sys.stderr)
    return results


def tell(results: dict[str, Result]) -> int:
    """-> the exit code."""
    bad = [name for name in results if not passed(name, results[name])]
    for name in bad:
        print(f"\n{name}:\n{tail(LOGS / f'{name}.log')}\n", file=sys.stderr)
    print(table(results))
    return int(bool(bad))


def passed(name: str, result: Result) -> bool:
    """A case that cannot be had is told; where a machine was made for the tests it is a failure."""
    return result.verdict(CASES[name]) == "passed" or (bool(result.missing) and "CI" not in os.environ)


def tail(path: Path, lines: int = 25) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(main())
