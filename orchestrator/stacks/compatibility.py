"""What does not fit in an environment, in words. `pip check` finds none of it: these wheels do
not declare their torch. Rules from packages and variables to mismatches; they look at nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from packaging.version import Version

from orchestrator.stacks.installed import Environment, Shell, gpu_wheel, is_ours
from orchestrator.stacks.matrix import describe, fits_torch, stack_like
from orchestrator.stacks.stack import BINDINGS, IPEX, TORCH, Stack, minor, same_version

# transformers -> the oldest accelerate that its metadata takes.
ACCELERATE_FOR = (("5.0", "1.1.0"), ("4.47", "0.26.0"), ("4.36", "0.21.0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """What does not fit, why that matters, and how to mend it."""

    package: str
    what: str
    why: str
    cure: str

    def describe(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  cure: {self.cure}"


Rule = Callable[[Environment, Sequence[Stack]], Iterator[Mismatch]]


def mismatches(environment: Environment, stacks: Sequence[Stack], stack: Stack | None = None) -> tuple[Mismatch, ...]:
    """All that does not fit; with a stack also where the environment differs from it."""
    found = [mismatch for rule in RULES for mismatch in rule(environment, stacks)]
    if stack is None:
        return (*no_torch(environment, stacks), *found)
    named = {mismatch.package for mismatch in found}
    rest = [m for m in differences(environment, stack) if m.package not in named]
    return (*found, *rest)


def no_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    if TORCH not in env.packages:
        like = wanted_stack(env, stacks)
        yield Mismatch(
            package=TORCH,
            what="there is no torch",
            why="nothing can be trained in this environment",
            cure="`orch setup` installs a stack beside orch; elsewhere `orch stacks requirements "
            f"{like.name}` prints it for pip",
        )


def ipex_for_another_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    torch, ipex = env.version(TORCH), env.version(IPEX)
    if ipex is None or torch is None or ipex.release[:2] == torch.release[:2]:
        return
    wants = ".".join(map(str, ipex.release[:2]))
    yield Mismatch(
        package=IPEX,
        what=f"IPEX {ipex} with torch {torch}",
        why=f"IPEX {wants} is built for torch {wants}; from 1.12 on, importing it ends the "
        f"program (exit 127): 'needs to work with PyTorch {wants}.*, but PyTorch {torch} is found'",
        cure=cure_for_torch(stacks, torch, IPEX),
    )


def bindings_for_another_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    torch, bindings = env.version(TORCH), env.version(BINDINGS)
    if bindings is None or torch is None or gpu_wheel(bindings):
        return
    if is_ours(bindings):
        fits = minor(str(bindings)) == minor(str(torch))
        why = "importing them under another torch than they were built for is an ImportError"
    else:
        fits = fits_torch(stacks, str(bindings), str(torch))
        why = "without a check of theirs, importing them ends in 'undefined symbol'"
    if not fits:
        yield Mismatch(
            package=BINDINGS,
            what=f"oneccl_bind_pt {bindings} with torch {torch}",
            why=f"the bindings are C++ built against one torch: {why}",
            cure=cure_for_torch(stacks, torch, BINDINGS),
        )


def gpu_bindings(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    bindings = env.version(BINDINGS)
    if bindings is not None and gpu_wheel(bindings):
        torch = env.version(TORCH)
        fitting = stack_like(stacks, torch.public if torch else bindings.public)
        right = fitting.bindings.version if fitting.bindings else "of another stack"
        yield Mismatch(
            package=BINDINGS,
            what=f"oneccl_bind_pt {bindings} is the wheel for Intel GPUs",
            why="it bears the same name as the CPU wheel and needs SYCL and a GPU build of torch",
            cure=f"pip install oneccl_bind_pt=={right}; ask for +cpu, from Intel's cpu index",
        )


def cuda_torch(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    torch = env.version(TORCH)
    if torch is None or torch.local == "cpu":
        return
    nvidia = [name for name in env.packages if name.startswith("nvidia-")]
    if not (torch.local or "").startswith(("cu", "rocm", "xpu")) and not nvidia:
        return
    public = torch.public
    yield Mismatch(
        package=TORCH,
        what=f"torch {torch} is a GPU build" + (f", with {len(nvidia)} CUDA packages" * bool(nvidia)),
        why="it works on CPU nodes, but each of them carries several GB for nothing",
        cure=f"pip install torch=={public}+cpu --index-url https://download.pytorch.org/whl/cpu, "
        "and uninstall what starts with nvidia-",
    )


def transformers_too_new(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    found, ipex, bindings = env.version("transformers"), env.version(IPEX), env.version(BINDINGS)
    if found is None:
        return
    cure = f"pip install transformers=={wanted(env, stacks, 'transformers')}"
    if ipex is not None and found >= Version("4.53"):
        gone = found >= Version("4.57")
        yield Mismatch(
            package="transformers",
            what=f"transformers {found} does not use IPEX",
            why="--use_ipex is an unknown argument from 4.57 on (TypeError)"
            if gone
            else "--use_ipex is taken but has had no effect since 4.53",
            cure=f"{cure}, or leave --use_ipex out",
        )
    elif bindings is not None and not is_ours(bindings) and found >= Version("5.1"):
        yield Mismatch(
            package="transformers",
            what=f"transformers {found} no longer takes --ddp_backend ccl",
            why="the value ended with 5.0 (argparse: exit 2)",
            cure=f"{cure}, or start with `orch train`, which makes the process group beforehand",
        )


def accelerate_does_not_fit(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    found = env.version("accelerate")
    if found is None:
        return
    for problem, why in accelerate_problems(env, found):
        yield Mismatch(
            package="accelerate",
            what=f"accelerate {found} {problem}",
            why=why,
            cure=f"pip install accelerate=={wanted(env, stacks, 'accelerate')}",
        )
        return


def accelerate_problems(env: Environment, found: Version) -> Iterator[tuple[str, str]]:
    transformers, bindings = env.version("transformers"), env.version(BINDINGS)
    if bindings is not None and not is_ours(bindings):
        if found >= Version("1.13"):
            yield "no longer knows ccl", "it ended with 1.12; with 1.13 it is gloo, or a ValueError"
        if bindings < Version("1.12") and found >= Version("1.8"):
            yield (
                f"does not import torch_ccl, the module of oneccl_bind_pt {bindings}",
                "1.7 was the last that knew the old name",
            )
    if env.version(IPEX) is not None and found >= Version("1.8"):
        yield ("no longer calls ipex.optimize", "the body was removed in 1.8: --use_ipex does nothing")
    if transformers is None:
        return
    oldest = next((old for tf, old in ACCELERATE_FOR if transformers >= Version(tf)), "0")
    if found < Version(oldest):
        yield f"is too old for transformers {transformers}", f"that one wants {oldest} or newer"
    if Version("4.36") <= transformers < Version("4.38") and found >= Version("1.0"):
        yield (
            f"is too new for transformers {transformers}",
            "Accelerator() got an unexpected keyword argument 'dispatch_batches'",
        )


def old_module_name(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    """transformers and accelerate know both names; scripts that were written for one do not."""
    bindings = env.version(BINDINGS)
    if bindings is None or bindings >= Version("1.12") or env.shell is None:
        return
    yield Mismatch(
        package=f"{BINDINGS} module",
        what=f"oneccl_bind_pt {bindings} is imported as torch_ccl",
        why="the name oneccl_bindings_for_pytorch came with 1.12: importing that one fails here",
        cure="import torch_ccl, and source env/setvars.sh in its folder",
    )


def shell_lacks(env: Environment, stacks: Sequence[Stack]) -> Iterator[Mismatch]:
    shell, bindings = env.shell, env.version(BINDINGS)
    if shell is None:
        return
    if not shell.variables.get("MASTER_ADDR"):
        yield Mismatch(
            package="MASTER_ADDR",
            what="MASTER_ADDR is not set",
            why="ranks started by mpirun meet there: 'environment variable MASTER_ADDR expected, but not set'",
            cure="export MASTER_ADDR=<address of node0>; `orch train` sets it",
        )
    if bindings is not None:
        yield from shell_lacks_for_ccl(shell, bindings)


def shell_lacks_for_ccl(shell: Shell, bindings: Version) -> Iterator[Mismatch]:
    count = shell.variables.get("CCL_WORKER_COUNT", "")
    if not count.isdigit() or int(count) < 1:
        yield Mismatch(
            package="CCL_WORKER_COUNT",
            what="CCL_WORKER_COUNT is not set to 1 or more",
            why="accelerate up to 1.12 then takes gloo without a word, or says 'Your assigned "
            "backend ccl is not avaliable, please use gloo'",
            cure="export CCL_WORKER_COUNT=1",
        )
    if shell.mpirun is None or (shell.libmpi is None and not is_ours(bindings)):
        module = "torch_ccl" if bindings < Version("1.12") else "oneccl_bindings_for_pytorch"
        lacks = "mpirun" if shell.mpirun is None else "libmpi.so.12"
        yield Mismatch(
            package="setvars",
            what=f"{lacks} is not found: setvars.sh was not sourced",
            why="'mpirun: command not found', or at the first collective 'could not open the library: libmpi.so.12'",
            cure=f". \"$(python -c 'import {module} as m; print(m.__path__[0])')/env/setvars.sh\"",
        )


def differences(env: Environment, stack: Stack) -> Iterator[Mismatch]:
    """Where the environment is not the stack."""
    why = f"stack '{stack.name}' is locked: its versions are those that fit together"
    if not stack.runs_on_python(env.python):
        yield Mismatch(
            package="python",
            what=f"Python {env.python}, where '{stack.name}' needs {stack.python}",
            why="its wheels exist for these versions only",
            cure=f"make the environment with a Python {stack.python}",
        )
    for package, version in stack.requirements.items():
        found = env.packages.get(package)
        if not same_version(found, version):
            alone = " --no-deps" if package in stack.without_dependencies else ""
            yield Mismatch(
                package=package,
                what=f"{package} is {found or 'missing'}, should be {version}",
                why=why,
                cure=f"pip install{alone} {package}=={version}",
            )


def cure_for_torch(stacks: Sequence[Stack], torch: Version, package: str) -> str:
    """What to install in place of a package that is of another torch."""
    like = stack_like(stacks, torch.public)
    has = {IPEX: like.ipex, BINDINGS: like.bindings.version if like.bindings else None}[package]
    if minor(like.torch) != torch.release[:2]:
        return f"no stack has torch {torch}; the nearest is {describe(like)}"
    if has is None:
        return f"pip uninstall {package}: there is none for torch {torch}, as in {describe(like)}"
    return f"pip install {package}=={has}, as in {describe(like)}"


def wanted(env: Environment, stacks: Sequence[Stack], package: str) -> str:
    return wanted_stack(env, stacks).requirements[package]


def wanted_stack(env: Environment, stacks: Sequence[Stack]) -> Stack:
    """The stack of this IPEX, else of these bindings, else of this torch."""
    of = env.version(IPEX) or env.version(BINDINGS) or env.version(TORCH)
    return stack_like(stacks, of.public if of else None)


RULES: tuple[Rule, ...] = (
    gpu_bindings,
    bindings_for_another_torch,
    ipex_for_another_torch,
    cuda_torch,
    transformers_too_new,
    accelerate_does_not_fit,
    old_module_name,
    shell_lacks,
)
