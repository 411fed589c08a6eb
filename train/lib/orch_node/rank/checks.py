"""Check before training that a rank runs where and with what the run was planned."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from orch_node.events import send
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.events import Raised
from orch_node.protocol.layout import NodeEntry, RankEntry

IMAGE_REPAIR = "`orch image build`"
SEPARATE_MODELS = "ORCH_SEPARATE_MODELS"
# The lines of each long message by its name, as JSON, because Python 3.9 does not read TOML. They are read at the
# start of a rank, whose installation may be replaced later.
MESSAGES: dict[str, list[str]] = json.loads(Path(__file__).with_name("messages.json").read_text())


class RankError(Exception):
    """A reason not to start training, in one sentence."""


class TrainingCheck:
    """A check within the calls of a training, which its own failure disables; that never ends the training."""

    name: str
    pid: int  # of the rank, in which alone it checks
    finished = False
    error: RankError | None = None  # which a script may catch

    def finish(self) -> None:
        self.finished = True

    def check_end(self) -> None:
        """Raise the error again at the end of a script that has caught it."""
        if self.error and os.getpid() == self.pid:
            raise self.error


def safely(check: Callable[..., None]) -> Callable[..., None]:
    """Decorate a method of a TrainingCheck that torch calls: it does nothing after the check's end or failure."""

    @functools.wraps(check)
    def run(self: TrainingCheck, *args: Any, **kwargs: Any) -> None:
        if self.finished or os.getpid() != self.pid:
            return
        try:
            check(self, *args, **kwargs)
        except RankError as error:
            self.error = error
            self.finish()
            raise
        except Exception as error:
            print(f"orch: the {self.name} failed and is off: {error!r:.300}", file=sys.stderr)
            self.finish()

    return run


def describe(name: str, /, **values: object) -> str:
    """Return a message of messages.json with these values in its fields."""
    return " ".join(MESSAGES[name]).format(**values)


def has_separate_models() -> bool:
    """Return whether the user says that every rank trains a separate model."""
    return os.environ.get(SEPARATE_MODELS) == "1"


def fail(text: str) -> NoReturn:
    """Report why a rank cannot start, and exit."""
    send(Raised(text=text))
    print(f"error: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def check_placement(placement: RankEntry) -> list[int]:
    """Return the CPUs of this process.

    Called before torch is imported: an OpenMP runtime may narrow the main thread's CPUs further.

    Raises:
        RankError: if they are not the planned ones.
    """
    planned, actual = sorted(placement.cpus), sorted(os.sched_getaffinity(0))
    if planned and planned != actual:
        raise RankError(f"rank {placement.rank} should run on CPUs {planned}, but may use {actual}.")
    return actual


def check_node(node: NodeEntry) -> None:
    """Check that this is the planned node, and that its interface has the planned address.

    Raises:
        RankError: if it is not.
    """
    # `orch provision` has recorded the node's facts, or they date from the planning.
    host, hint = socket.gethostname(), describe("recorded-node" if node.recorded else "planned-node")
    if host != node.host:
        raise RankError(describe("wrong-host", node=node, host=host, hint=hint))
    if node.interface is None or node.address is None:
        return
    present = [name for _, name in socket.if_nameindex()]
    if node.interface not in present:
        raise RankError(f"{node.name} has no interface {node.interface}, only {', '.join(present)}. " + hint)
    family = socket.AF_INET6 if ":" in node.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((node.address, 0))
        except OSError as error:
            raise RankError(describe("no-address", node=node, reason=error.strerror, hint=hint)) from None


def check_torch(node: NodeEntry, version: str, spec: ContainerSpec | None) -> None:
    """Check that torch has the planned version, build aside.

    Different versions can make ranks hang or train wrongly. Builds of one version train together;
    the plan names different builds.

    Raises:
        RankError: if the version is another one.
    """
    planned = node.torch
    if not planned or planned.partition("+")[0] == version.partition("+")[0]:  # without the build
        return
    owner, repair = f"image {spec.image}" if spec else node.name, repair_command(node, spec)
    raise RankError(f"{owner} has torch {version}, and was planned with {planned}. To repair it: {repair}.")


def check_image_packages(names: str, spec: ContainerSpec | None) -> None:
    """Check that the image of this rank has packages, whose names are separated by spaces.

    Raises:
        RankError: if one of them is not installed.
    """
    from importlib import metadata  # the wrappers, which import this module for its messages, do without it

    if missing := [name for name in names.split() if not any(metadata.distributions(name=name))]:
        image = f"image {spec.image}" if spec else "the image"
        raise RankError(describe("image-packages", image=image, missing=" and ".join(missing)))


def repair_command(node: NodeEntry, spec: ContainerSpec | None) -> str:
    """Return the command that restores the stack on the node or in the image."""
    return IMAGE_REPAIR if spec else node.repair


def check_environment(planned: dict[str, str]) -> None:
    """Check that this process has the planned variables.

    Raises:
        RankError: if one of them differs.
    """
    for name, value in planned.items():
        # The ranks check the rendezvous by meeting there, at another port on each attempt;
        # check_preload() checks preloaded libraries, which may be links, in the memory map.
        # The folders of the user's modules are appended to PYTHONPATH.
        is_checked_elsewhere = name in ("LD_PRELOAD", "PYTHONPATH") or name.startswith("MASTER_")
        if not is_checked_elsewhere and os.environ.get(name) != value:
            raise RankError(f"the variable {name} is {os.environ.get(name)!r}, and was planned as {value!r}.")


def check_preload(planned: str, repair: str) -> None:
    """Check that every library of LD_PRELOAD is mapped; the loader only warns if it is not.

    Raises:
        RankError: if one is not mapped, with the reason and the `repair` command.
    """
    mapped = Path("/proc/self/maps").read_text(errors="surrogateescape")
    for library in (*planned.split(":"), *os.environ.get("LD_PRELOAD", "").split(":")):
        if library and os.path.realpath(library) not in mapped:
            reason = "the loader skipped it; it splits paths at spaces, colons and dollar signs"
            try:
                ctypes.CDLL(library)
            except OSError as error:
                reason = str(error)
            raise RankError(describe("not-preloaded", library=library, reason=reason, repair=repair))
