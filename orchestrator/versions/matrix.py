"""The stacks together: which one fits what was asked, and what each needs to be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from orchestrator.errors import PlanError, RequestError
from orchestrator.versions.stack import BINDINGS, IPEX, Index, Stack, minor

# Wheels of oneccl_bind_pt that are for Intel GPUs and bear the name of those for CPU: the git tags
# +gpu and +xpu of intel/torch-ccl that have no +cpu beside them.
XPU_ONLY_BINDINGS = frozenset(
    {"1.13.100", "1.13.200", "2.0.100", "2.1.100", "2.1.200", "2.1.300", "2.1.400", "2.3.100"}
    | {"2.8.0"}
)
PARTS = {"torch": "torch", "ipex": "IPEX", "bindings": "oneccl_bind_pt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Versions that were asked for, also in short (2.7); None where any will do."""

    torch: str | None = None
    ipex: str | None = None
    bindings: str | None = None

    def asked(self) -> dict[str, str]:
        values = {"torch": self.torch, "ipex": self.ipex, "bindings": self.bindings}
        return {part: value for part, value in values.items() if value is not None}

    def describe(self) -> str:
        words = [f"{PARTS[part]} {version}" for part, version in self.asked().items()]
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A machine that may run a stack: Python's version, platform.system() and .machine()."""

    python: str
    system: str
    machine: str


def resolve_mix(stacks: Sequence[Stack], mix: Mix) -> Stack:
    """The stack that has what was asked for. Raises PlanError with the nearest sets if none has."""
    check_versions(mix)
    for stack in stacks:
        if not misfits(stack, mix):
            return stack
    reason = "" if len(mix.asked()) == 1 else " together"
    xpu = mix.bindings in XPU_ONLY_BINDINGS
    why = f" oneccl_bind_pt {mix.bindings} is a wheel for Intel GPUs." if xpu else ""
    near = nearest(stacks, mix)
    raise PlanError(
        f"No stack has {mix.describe()}{reason}.{why} Nothing was installed.",
        hint="Sets that fit: " + ", or ".join(describe(stack) for stack in near) + ".",
    )


def check_versions(mix: Mix) -> None:
    if not mix.asked():
        raise RequestError("No version to look for.", hint="Give --torch, --ipex or --bindings.")
    for part, version in mix.asked().items():
        try:
            Version(version)
        except InvalidVersion:
            raise RequestError(f"--{part} {version} is not a version.") from None


def misfits(stack: Stack, mix: Mix) -> tuple[str, ...]:
    """The parts of the mix that the stack has in another version, or not at all."""
    return tuple(
        part for part, version in mix.asked().items() if not answers(part_of(stack, part), version)
    )


def part_of(stack: Stack, part: str) -> str | None:
    bindings = stack.bindings.version if stack.bindings else None
    return {"torch": stack.torch, "ipex": stack.ipex, "bindings": bindings}[part]


def answers(has: str | None, asked: str) -> bool:
    """Whether a version is the one asked for: 2.7 asks for any 2.7.x, +xpu for that alone."""
    if has is None:
        return False
    public, _, local = asked.partition("+")
    # All stacks are for CPU, whether their numbers say so or not.
    if local and local != (has.partition("+")[2] or "cpu"):
        return False
    wanted = Version(public).release
    return Version(has).release[: len(wanted)] == wanted


def nearest(stacks: Sequence[Stack], mix: Mix) -> tuple[Stack, ...]:
    """For each part that was asked for, the stack that comes closest in it; torch first."""
    chosen = [closest(stacks, mix, part) for part in mix.asked()]
    return tuple({stack.name: stack for stack in chosen}.values())


def closest(stacks: Sequence[Stack], mix: Mix, part: str) -> Stack:
    return min(stacks, key=lambda stack: distance(stack, mix, part))


def distance(stack: Stack, mix: Mix, part: str) -> tuple[tuple[int, ...], int]:
    """How far the stack is from the mix: in this part, then in the number of parts that differ."""
    return apart(part_of(stack, part), mix.asked()[part]), len(misfits(stack, mix))


def apart(has: str | None, asked: str) -> tuple[int, ...]:
    if has is None:
        return (1000,)
    wanted = Version(asked).release
    return tuple(abs(a - b) for a, b in zip(Version(has).release, wanted, strict=False))


def describe(stack: Stack) -> str:
    """`intel-2.7` (torch 2.7.0, IPEX 2.7.0, oneccl_bind_pt 2.7.0+cpu)."""
    parts = [
        f"{word} {version}" if (version := part_of(stack, part)) else f"no {word}"
        for part, word in PARTS.items()
    ]
    return f"'{stack.name}' ({', '.join(parts)})"


def stack_like(stacks: Sequence[Stack], torch: str | None) -> Stack:
    """The stack to measure an environment by: of this torch, or the nearest to it."""
    if torch is None:
        return stacks[0]
    return nearest(stacks, Mix(torch=torch.partition("+")[0]))[0]


def fits_torch(stacks: Sequence[Stack], bindings: str, torch: str) -> bool:
    """Whether a wheel of the bindings was built for this torch, as far as the matrix knows it."""
    known = [s for s in stacks if s.bindings and answers(s.bindings.version, bindings)]
    if known:
        return any(answers(torch.partition("+")[0], stack.torch) for stack in known)
    return minor(bindings) == minor(torch)


def state(stack: Stack, here: Here) -> tuple[str, ...]:
    """What a stack needs here that is not at hand, else `works here`; and its end of life."""
    needs = []
    if here.system != "Linux" or here.machine != "x86_64":
        needs.append("needs Linux on x86-64")
    if not stack.runs_on_python(here.python):
        needs.append(f"needs Python {stack.python}")
    needs += dict.fromkeys(f"needs {index.name}" for index in stack.indexes if index.only_there)
    end = [stack.end_of_life.describe()] if stack.end_of_life else []
    return (*(needs or ["works here"]), *end)


def alternatives(stack: Stack, package: str, stacks: Sequence[Stack]) -> tuple[str, ...]:
    """What else serves whoever cannot get this package of the stack."""
    words = []
    if package == BINDINGS and "gloo" in stack.backends:
        words.append("--backend gloo does without these bindings")
    free = [s for s in stacks if s.name != stack.name and not any(i.only_there for i in s.indexes)]
    if package in (BINDINGS, IPEX):
        words += [f"{describe(s)} comes from PyPI" for s in free if s.ipex][:1]
    words += [f"'{s.name}' builds its own bindings" for s in free if own_bindings(s)][:1]
    return (*words, "--index-url URL or --find-links DIR names a mirror")


def own_bindings(stack: Stack) -> bool:
    return stack.bindings is not None and stack.bindings.built_by == "orch"


def index_of(stack: Stack, package: str) -> Index | None:
    """The place that a package of the stack comes from, if it is not pip's own index."""
    return next((index for index in stack.indexes if package in index.serves), None)
