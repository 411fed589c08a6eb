from __future__ import annotations

from dataclasses import replace

from packaging.version import Version

from orchestrator import load
from orchestrator.model.decision import Finding
from orchestrator.stacks.compatibility import Environment, Machine, Shell, bindings_fit_torch, mismatches, status
from orchestrator.stacks.stack import BINDINGS, IPEX, Stack

STACKS, INCOMPATIBILITIES = load.all_stacks(), load.incompatibilities()
LINUX = Machine(python="3.11.2", system="Linux", machine="x86_64")
GOOD_SHELL = Shell(
    variables={"MASTER_ADDR": "10.0.0.1", "CCL_WORKER_COUNT": "1"},
    mpirun="/opt/mpi/bin/mpirun",
    libmpi="/opt/mpi/lib/libmpi.so.12",
)


def find_mismatches(shell: Shell | None = None, stack: Stack | None = None, **packages: str) -> tuple[Finding, ...]:
    distributions = {"ipex": IPEX, "bindings": BINDINGS}
    environment = Environment(
        name="node0",
        python="3.11.2",
        packages={distributions.get(n, n.replace("_", "-")): version for n, version in packages.items()},
        shell=shell,
    )
    return mismatches(environment, STACKS, INCOMPATIBILITIES, stack)


def test_every_stack_is_free_of_mismatches() -> None:
    for stack in STACKS:
        python = stack.python.partition(",")[0].removeprefix(">=") + ".5"
        environment = Environment(name="node0", python=python, packages=stack.requirements)
        assert mismatches(environment, STACKS, INCOMPATIBILITIES, stack) == ()


def test_torch_for_gpus_is_no_mismatch_where_ranks_may_use_gpus() -> None:
    environment = Environment(name="node0", python="3.11.2", packages={"torch": "2.11.0+cu130", "nvidia-nccl": "2.28"})
    assert [mismatch.subject for mismatch in mismatches(environment, STACKS, INCOMPATIBILITIES)] == ["torch"]
    assert mismatches(replace(environment, for_gpus=True), STACKS, INCOMPATIBILITIES) == ()


NO_MPI_SHELL = Shell(variables={"MASTER_ADDR": "10.0.0.1"}, mpirun=None, libmpi=None)


def test_environment_without_mismatches() -> None:
    for packages, shell in (
        ("torch 2.13.0+cpu, bindings 2.13.0+orch.1, transformers 5.23.0, accelerate 1.15.0", GOOD_SHELL),
        ("torch 2.13.0+cpu, bindings 2.13.0+orch.1", replace(GOOD_SHELL, libmpi=None)),
        ("torch 2.13.0+cpu", NO_MPI_SHELL),  # gloo without MPI
        ("torch 2.13.0+cpu, transformers main-checkout", None),  # no version
    ):
        assert find_mismatches(shell, **dict(package.split() for package in packages.split(", "))) == ()


# What is installed, the problem, its reason and the remedy, each separated by " | ".
MISMATCHES = """
torch 2.13.0+cpu, ipex 2.8.0 | IPEX 2.8.0 with torch 2.13.0+cpu | PyTorch 2.13.0+cpu is found | pip uninstall intel-
torch 2.6.0+cpu, ipex 2.7.0+cpu | IPEX 2.7.0+cpu with torch 2.6.0+cpu | exit 127 | pytorch==2.6.0, as in 'intel-2.6'
torch 2.16.0+cpu, bindings 2.13.0+orch.1 | oneccl_bind_pt 2.13.0+orch.1 with | raises ImportError | is 'torch-2.15'
torch 1.12.1+cpu, bindings 1.12.0+cpu | oneccl_bind_pt 1.12.0+cpu with torch 1.12.1 | undefined symbol | ==1.12.100+cpu
torch 2.7.0+cpu, bindings 2.7.0+xpu | oneccl_bind_pt 2.7.0+xpu is the wheel for Intel GPUs | SYCL | pt==2.7.0+cpu
torch 2.8.0+cu128 | torch 2.8.0+cu128 is a GPU build | several GB | torch==2.8.0+cpu --index-url https://download.pytorch
torch 2.8.0, nvidia-cudnn-cu12 9.1, nvidia-nccl-cu12 2.2 | torch 2.8.0 is a GPU build, with 2 | works on CPU | 2.8.0+cpu
torch 2.8.0+cpu, ipex 2.8.0, transformers 4.57.0 | transformers 4.57.0 does not use IPEX | TypeError | ==4.52.4
torch 2.7.0+cpu, bindings 2.7.0+cpu, transformers 5.1.0 | transformers 5.1.0 does not accept --ddp | exit 2 | ==4.52.4
torch 2.7.0+cpu, bindings 2.7.0+cpu, accelerate 1.13.0 | accelerate 1.13.0 does not know ccl | gloo | accelerate==1.7.0
torch 2.8.0+cpu, ipex 2.8.0, accelerate 1.8.0 | accelerate 1.8.0 does not call ipex | does nothing | accelerate==1.7.0
torch 1.11.0+cpu, bindings 1.11.0+cpu, accelerate 1.8.0 | accelerate 1.8.0 does not import torch_ccl | 1.7 | ==0.34.2
torch 2.13.0+cpu, transformers 5.23.0, accelerate 1.0.1 | accelerate 1.0.1 is too old for | 1.1.0 or newer | ==1.15.0
torch 1.10.0+cpu, transformers 4.36.2, accelerate 1.0.1 | accelerate 1.0.1 is too new for | dispatch_batches | ==0.34.2
numpy 2.0 | torch is not installed | training | orch stacks requirements current
"""


def test_mismatch_has_a_reason_and_a_remedy() -> None:
    for packages, problem, reason, remedy in [line.split(" | ") for line in MISMATCHES.strip().splitlines()]:
        (mismatch,) = find_mismatches(**dict(package.split() for package in packages.split(", ")))
        assert mismatch.message.startswith(problem)
        assert reason in mismatch.evidence
        assert remedy in mismatch.hint


def test_shell_lacks_a_variable_or_program() -> None:
    for changes, problem, hint in (
        ({"variables": {**GOOD_SHELL.variables, "MASTER_ADDR": ""}}, "MASTER_ADDR is not set", "export MASTER_ADDR="),
        ({"variables": {**GOOD_SHELL.variables, "CCL_WORKER_COUNT": "0"}}, "CCL_WORKER_COUNT", "export CCL_WORKER_COU"),
        ({"mpirun": None}, "mpirun not found: setvars.sh", "env/setvars.sh"),
        ({"libmpi": None}, "libmpi.so.12 not found: setvars.sh", "oneccl_bindings_for_pytorch"),
    ):
        bad_shell = replace(GOOD_SHELL, **changes)
        (mismatch,) = find_mismatches(shell=bad_shell, torch="2.7.0+cpu", bindings="2.7.0+cpu")
        assert mismatch.message.startswith(problem)
        assert hint in mismatch.hint


def test_stack_is_compared_completely_and_each_package_is_reported_once() -> None:
    stack = load.stack("intel-2.8")
    packages = {**stack.requirements, "accelerate": "1.8.0", "datasets": "9.9"}
    del packages["tensorboard"]
    result = mismatches(Environment(name="node0", python="3.14.0", packages=packages), STACKS, INCOMPATIBILITIES, stack)
    assert [m.subject for m in result] == ["accelerate", "python", "datasets", "tensorboard"]


def test_bindings_fit_the_torch_of_their_stack() -> None:
    for bindings, torch, fit in (
        ("1.12.0+cpu", "1.12.1+cpu", False),
        ("1.12.100+cpu", "1.12.1", True),
        ("2.4.5", "2.4.1", True),
    ):
        assert bindings_fit_torch(STACKS, Version(bindings), Version(torch)) is fit


def test_status_names_what_the_machine_lacks() -> None:
    for name, platform, result in (
        ("current", LINUX, ("works here",)),  # newest
        ("intel-2.8", LINUX, ("works here", "end of life since 2026-03-30")),  # without support
        ("torch-ccl-1.10", LINUX, ("needs Python >=3.9,<3.10", "needs Intel's index", "end of life since 2025-12-31")),
        ("current", Machine(python="3.11.2", system="Darwin", machine="arm64"), ("needs Linux on x86-64",)),  # macOS
    ):
        assert status(load.stack(name), platform) == result
