"""`make release`: what a release has, in build/release, tried in an empty container.

orch's sdist and wheel, a wheel of the ccl bindings, a bill of materials and checksums.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from orchestrator.files import sha256
from orchestrator.operations.version import DISTRIBUTION
from orchestrator.provisioning.sbom import sbom
from orchestrator.provisioning.wheelhouse import Wheel, describe_wheel
from tests.fresh.__main__ import configuration, said
from tests.fresh.cases import CASES, CHEAPEST

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "build" / "release"
SUMS = "SHA256SUMS"
SIGNERS = CHECKOUT / "release" / "allowed_signers"
NAMESPACE = "orch-release"


def run(*words: str) -> str:
    done = subprocess.run(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def python(*words: str) -> str:
    return run(sys.executable, *words)


def build(*, quick: bool) -> None:
    """All files of a release; `quick`: the bindings as they were built for this machine."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    tell("orch's sdist and wheel")
    python("-m", "hatchling", "build", "--directory", str(FOLDER))
    tell("the wheel of the ccl bindings")
    if quick:
        for wheel in (Path(sys.prefix) / "wheels").glob("oneccl_bind_pt-*.whl"):
            shutil.copy(wheel, FOLDER)
    else:
        python("bindings/manylinux.py", str(FOLDER))
    tell("the bill of materials")
    own = only("orch_train-*.whl")
    parts = [*required(own), describe_wheel(only("oneccl_bind_pt-*.whl"))]
    value = sbom(own.name.removesuffix("-py3-none-any.whl"), parts, kind="application")
    path = FOLDER / f"{own.name.removesuffix('-py3-none-any.whl')}.cdx.json"
    path.write_text(json.dumps(value, indent=1) + "\n")
    lines = [f"{sha256(file)}  {file.name}\n" for file in sorted(FOLDER.iterdir())]
    (FOLDER / SUMS).write_text("".join(lines))


def only(pattern: str) -> Path:
    (found,) = FOLDER.glob(pattern)
    return found


def required(wheel: Path) -> Iterator[Wheel]:
    """What pip would install with orch today, as its report has it."""
    words = ("install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", str(wheel))
    for one in json.loads(python("-m", "pip", *words))["install"]:
        name, found = one["metadata"]["name"], one["download_info"]
        if name != DISTRIBUTION:
            yield Wheel(
                name=canonicalize_name(name),
                version=one["metadata"]["version"],
                file=found["url"].rpartition("/")[2],
                sha256=found["archive_info"]["hashes"]["sha256"],
                size=0,
            )


def try_it() -> int:
    """Install and use it where nothing is but Debian's Python; -> the exit code."""
    image = said(str(CHECKOUT / "tests/fresh/image"), CASES[CHEAPEST].suite)
    words = ["docker", "run", "--rm", "--init", "--user", "alice"]
    words += ["--name", f"orch-release-{os.getpid()}", *configuration().arguments(CASES[CHEAPEST])]
    words += ["--volume", f"{FOLDER}:/release:ro", "--volume", f"{CHECKOUT}/release/try:/try:ro"]
    return subprocess.run([*words, image, "/try"]).returncode


def sign(sums: Path, key: Path, signers: Path = SIGNERS) -> None:
    """Sign a file of checksums with a maintainer's SSH key, into a file with the suffix .sig.

    Raises:
        subprocess.CalledProcessError: if ssh-keygen cannot sign, or `signers` lacks the key.
    """
    signature = sums.with_name(f"{sums.name}.sig")
    signature.unlink(missing_ok=True)
    run("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums))
    run("ssh-keygen", "-Y", "find-principals", "-f", str(signers), "-s", str(signature))


def tell(words: str) -> None:
    print(f"release: {words}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the bindings' wheel of .venv, not one for other hosts")
    parser.add_argument("--key", type=Path, help=f"the SSH key to sign {SUMS} with")
    args = parser.parse_args()
    build(quick=args.quick)
    code = try_it()
    if args.key and code == 0:
        sign(FOLDER / SUMS, args.key)
    tell(f"{FOLDER}: {', '.join(sorted(path.name for path in FOLDER.iterdir()))}")
    tell("tried: it works" if code == 0 else f"tried: it failed with exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
