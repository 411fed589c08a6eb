"""Test orch on the lowest versions of its dependencies that pyproject.toml allows: python -m tests.lowest [FOLDER].

FOLDER gets a copy of the development environment, of hard links, in which these versions replace the newest ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "lowest"
EXTRAS = ("k8s", "data")
# Files and tests that call each dependency; those that are slow or call the same ones again are left out.
FILES = {
    "cli": ("command_line", "defaults", "flags", "help", "screen"),
    "load": ("foreign_files", "inventory", "projects", "recipes", "requirements"),
    "provisioning": ("image", "sources", "ssh_settings"),
}
TESTS = (
    *(f"tests/unit/{package}/test_{name}.py" for package, names in FILES.items() for name in names),
    "tests/unit/load/test_packages.py::test_conflicts_name_both_requirements",  # uv
    "tests/unit/provisioning/test_pip.py::test_wheels_are_those_of_the_lock",
    "tests/unit/provisioning/test_playbook.py::test_ansible_evaluates_no_template_and_reads_local_files",
    "tests/unit/provisioning/test_urls.py::test_folder_of_a_web_server_is_mirrored",
    "tests/unit/provisioning/test_hub.py::test_wrong_names_and_a_wrong_token_are_explained",
)
LEFT_OUT = (
    # ansible-core 2.17, the last for Python 3.10, describes errors of inventories in other words.
    "tests/unit/load/test_inventory.py::test_unreadable_inventory_or_configuration_is_refused",
    # It takes as long as all other tests of the screen together, and more.
    "tests/unit/cli/test_screen.py::test_outputs_on_a_terminal_have_no_escaped_codes",
)
# huggingface-hub requires it, and its files would replace those of typer.
SAME_FILES = "typer-slim"
PIN = re.compile(r"([\w.-]+)==(\S+)")


def main() -> int:
    """Return the exit code of the tests."""
    folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else FOLDER
    # kubernetes requires newer versions of some packages than orch does.
    pins = {**lowest_versions(EXTRAS), **lowest_versions(())}
    pins.pop(SAME_FILES, None)
    python = make_environment(folder, [f"{name}=={version}" for name, version in pins.items()])
    deselected = [f"--deselect={test}" for test in LEFT_OUT]
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (
        [str(python.parent / "orch"), "--version"],
        [str(python.parent / "orch"), "train", "bert-qa", "--dry-run"],
        # click and others warn about calls of the old versions.
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *deselected, *TESTS],
    ):
        if code := subprocess.run(command, cwd=ROOT, env=environment).returncode:
            return code
    return 0


def lowest_versions(extras: Sequence[str]) -> dict[str, str]:
    """Return the lowest versions of the dependencies, and the newest of those that only others require."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution", "lowest-direct"]
    options = [word for extra in extras for word in ("--extra", extra)]
    python = ("--python-version", ".".join(map(str, sys.version_info[:2])))
    done = subprocess.run(
        [*command, *python, *options, "pyproject.toml"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return {canonicalize_name(name): version for name, version in PIN.findall(done.stdout)}


def make_environment(folder: Path, requirements: Sequence[str]) -> Path:
    """Return the Python of a copy of this environment in which these packages are installed."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--link", sys.prefix, str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--python", str(python)]
    subprocess.run([*install, *requirements], check=True)
    subprocess.run([*install, "--editable", str(ROOT)], check=True)
    return python


if __name__ == "__main__":
    raise SystemExit(main())
