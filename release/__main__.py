"""Build a release in build/release (`make release`), or try it in an empty container (`make release-trial`).

A release has orch's sdist and wheel, a wheel of the ccl bindings, a software bill of materials and checksums.
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

from orchestrator.files import sha256, tomllib
from orchestrator.operations.stacks import DISTRIBUTION
from orchestrator.provisioning.wheelhouse import Wheel, describe_wheel, sbom
from tests.fresh.__main__ import output_of
from tests.fresh.cases import CASES, CHEAPEST
from tests.fresh.index import index_arguments

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "build" / "release"
SUMS = "SHA256SUMS"
SIGNERS = CHECKOUT / "release" / "allowed_signers"
NAMESPACE = "orch-release"


def run(*command: str) -> str:
    """Run a command in the checkout and return its output."""
    return subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout


def python(*arguments: str) -> str:
    """Run this Python with arguments and return its output."""
    return run(sys.executable, *arguments)


def build(*, quick: bool) -> None:
    """Build all files of a release; with `quick`, use the bindings that were built for this machine."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    report("building orch's sdist and wheel")
    python("-m", "hatchling", "build", "--directory", str(FOLDER))
    report("building the wheel of the ccl bindings")
    if quick:
        for wheel in (Path(sys.prefix) / "wheels").glob("oneccl_bind_pt-*.whl"):
            shutil.copy(wheel, FOLDER)
    else:
        python("bindings/manylinux.py", str(FOLDER))
    report("writing the software bill of materials")
    orch_wheel = single_file("orch_train-*.whl")
    wheels = [*dependencies(orch_wheel), describe_wheel(single_file("oneccl_bind_pt-*.whl"))]
    name = orch_wheel.name.removesuffix("-py3-none-any.whl")
    (FOLDER / f"{name}.cdx.json").write_text(sbom(name, wheels, kind="application"))
    lines = [f"{sha256(file)}  {file.name}\n" for file in sorted(FOLDER.iterdir())]
    (FOLDER / SUMS).write_text("".join(lines))


def single_file(pattern: str) -> Path:
    """Return the only file of the release that matches a pattern."""
    (path,) = FOLDER.glob(pattern)
    return path


def dependencies(wheel: Path) -> Iterator[Wheel]:
    """Yield the packages that pip would install with orch now, from its report."""
    arguments = ("install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-", str(wheel))
    for package in json.loads(python("-m", "pip", *arguments))["install"]:
        metadata, download = package["metadata"], package["download_info"]
        if metadata["name"] != DISTRIBUTION:
            yield Wheel(
                name=canonicalize_name(metadata["name"]),
                version=metadata["version"],
                file=download["url"].rpartition("/")[2],
                sha256=download["archive_info"]["hashes"]["sha256"],
                size=0,
            )


def try_release() -> int:
    """Install and use the release in an empty container, and return the exit code."""
    case = CASES[CHEAPEST]
    image = output_of(str(CHECKOUT / "tests/fresh/image"), case.suite, "release")
    command = ["docker", "run", "--rm", "--init", "--user", "alice"]
    command += ["--name", f"orch-release-{os.getpid()}", *index_arguments(case)]
    files = {FOLDER: "/release", CHECKOUT / "release/try": "/try", CHECKOUT / "docs/how-to/ccl-alone.md": "/page"}
    command += [word for file, path in files.items() for word in ("--volume", f"{file}:{path}:ro")]
    return subprocess.run([*command, image, "/try", "/page"]).returncode


def sign(sums: Path, key: Path, signers: Path = SIGNERS) -> None:
    """Sign a file of checksums with a maintainer's SSH key, into a file with the suffix .sig.

    Raises:
        subprocess.CalledProcessError: if ssh-keygen cannot sign, or `signers` lacks the key.
    """
    signature = sums.with_name(f"{sums.name}.sig")
    signature.unlink(missing_ok=True)
    run("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums))
    run("ssh-keygen", "-Y", "find-principals", "-f", str(signers), "-s", str(signature))


def has_address(pyproject: Path) -> bool:
    """Return whether pyproject.toml has the address of the repository, which indexes and `pip show` display."""
    return "Repository" in tomllib.loads(pyproject.read_text())["project"]["urls"]


def report(progress: str) -> None:
    """Print a line of progress."""
    print(f"release: {progress}", file=sys.stderr, flush=True)


def main() -> int:
    """Build and sign a release, or try the one that was built, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="Use the bindings' wheel of .venv, which does not run on all hosts."
    )
    parser.add_argument("--key", type=Path, help=f"SSH key to sign {SUMS} with.")
    parser.add_argument("--try", dest="is_trial", action="store_true", help="Use the release in an empty container.")
    args = parser.parse_args()
    if args.is_trial:
        code = try_release()
        report("it works in an empty container" if code == 0 else f"it failed in an empty container: exit code {code}")
        return code
    if args.key and not has_address(CHECKOUT / "pyproject.toml"):
        parser.error(
            'a signed release needs the address of the repository: Repository = "https://..." in pyproject.toml'
        )
    build(quick=args.quick)
    if args.key:
        sign(FOLDER / SUMS, args.key)
    report(f"built in {FOLDER}:")
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.stat().st_size / 1e6:9.1f} MB  {path.name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
