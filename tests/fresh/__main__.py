"""Run README's two commands on bare machines, one container after another: `make fresh`.

This uses only the standard library, because it runs before anything is set up. The output of each case is in
build/fresh.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.fresh.cases import CASES
from tests.fresh.index import index_arguments
from tests.fresh.result import STEPS, Result, result_of

FOLDER = Path(__file__).resolve().parent
CHECKOUT = FOLDER.parent.parent
LOGS = CHECKOUT / "build" / "fresh"
PATH = "/usr/local/bin:/usr/bin:/bin"


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def container(name: str, image: str) -> list[str]:
    case = CASES[name]
    arguments = ["docker", "run", "--rm", "--interactive", "--init", "--user", case.user]
    arguments += ["--name", f"orch-fresh-{name}-{os.getpid()}", "--label", f"orch.fresh={CHECKOUT}"]
    if case.user != "root":
        arguments += ["--env", f"PATH={PATH}", "--security-opt", "no-new-privileges"]
    if case.locked_home:
        arguments += ["--tmpfs", "/locked:ro,mode=0555", "--env", "HOME=/locked"]
    if case.one_core:
        arguments += ["--cpuset-cpus", "0"]
    if case.small_tmp:
        arguments += ["--tmpfs", "/tmp:size=256m,mode=1777,exec"]
    arguments += [*index_arguments(case), "--volume", f"{FOLDER / 'begin'}:/begin:ro"]
    return [*arguments, image, "/begin", case.folder, case.umask, case.build, *STEPS]


def run(name: str) -> Result:
    command = container(name, output_of(str(FOLDER / "image"), CASES[name].suite))
    clone = subprocess.Popen(["git", "archive", "--format=tar", "HEAD"], cwd=CHECKOUT, stdout=subprocess.PIPE)
    path = LOGS / f"{name}.log"
    with clone, path.open("w") as log:
        code = subprocess.run(command, stdin=clone.stdout, stdout=log, stderr=log).returncode
    return result_of(code, path.read_text(errors="replace"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.fresh", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    if unknown_cases := set(options.cases) - set(CASES):
        parser.error(f"unknown case: {', '.join(sorted(unknown_cases))}. The cases are: {', '.join(CASES)}.")
    if output_of("git", "status", "--porcelain"):
        print("fresh: uncommitted changes are left out, as in a clone", file=sys.stderr)
    LOGS.mkdir(parents=True, exist_ok=True)
    code = 0
    for name in options.cases or CASES:
        log = LOGS / f"{name}.log"
        print(f"fresh: {CASES[name]}; log: {log}", file=sys.stderr)
        result = run(name)
        print(f"fresh: {name}: {result.verdict(CASES[name])}")
        # In CI, a case whose packages are not available has failed.
        if result.verdict(CASES[name]) != "passed" and ("CI" in os.environ or not result.missing):
            print(*log.read_text(errors="replace").splitlines()[-25:], sep="\n", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
