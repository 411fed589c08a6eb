from __future__ import annotations

import re

import pytest

from orchestrator.runs.explanations import explain
from orchestrator.runs.known_errors import KNOWN_SIGNATURES

LINES = [
    (
        "ipex for another torch",
        "ERROR! Intel® Extension for PyTorch* needs to work with PyTorch 2.8.*, but PyTorch 2.13.0+cpu is found.",
        "IPEX was built for torch 2.8; this is torch 2.13.0+cpu.",
    ),
    (
        "ipex 2.8 for another torch",
        'File "/venv/intel_extension_for_pytorch/__init__.py", line 100, in <module>\n'
        "AttributeError: module 'os' has no attribute 'exit'. Did you mean: '_exit'?",
        "requires torch 2.8",
    ),
    (
        "another torch than planned",
        "error: node1 has torch 2.12.0, and was planned with 2.13.0+cpu. To repair it: `orch provision`.",
        "planned for 2.13.0+cpu",
    ),
    (
        "no such interface for the KVS",
        "2026:01:01-12:00:00:( 1234) |CCL_ERROR| internal_kvs.cpp:200 can't find interface eth7",
        "interface eth7",
    ),
    (
        "no route",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
        "network address of (node0, 29500). The "
        "client socket has failed to connect to 10.0.0.7:29500 "
        "(errno: 113 - No route to host).",
        "cannot reach another one",
    ),
    ("no route", "ssh: connect to host node1 port 22: No route to host", "cannot reach another one"),
    (
        "locked memory",
        "ib_md.c:325 UCX ERROR ibv_reg_mr(address=0x1, length=26400, access=0xf) failed: Cannot allocate memory",
        "locked memory",
    ),
    (
        "transformers refuses ipex",
        "ImportError: Using IPEX but IPEX is not installed or IPEX's version does not match "
        "current PyTorch, please refer to https://github.com/intel/intel-extension-for-pytorch.",
        "built for another torch",
    ),
    (
        "bindings for another torch",
        "ImportError: /venv/lib/python3.11/site-packages/oneccl_bindings_for_pytorch/lib/"
        "liboneccl_bindings_for_pytorch.so: undefined symbol: _ZN2at14RecordFunction6beforeEPKcl",
        "built for another torch",
    ),
    (
        "our bindings for another torch",
        "ImportError: oneccl_bind_pt was built for torch 2.13, but torch 2.14 is installed. Install both "
        "from one stack: `orch setup`, `orch provision` on nodes, `orch image build`",
        "built for torch 2.13",
    ),
    (
        "our bindings for another torch",
        "ImportError: oneccl_bind_pt was built for torch 2.13, but torch is not installed. Install both "
        "from one stack: `orch setup`, `orch provision` on nodes, `orch image build`",
        "built for torch 2.13",
    ),
    (
        "use_ipex is gone",
        "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'use_ipex'",
        "4.57 removed --use_ipex",
    ),
    (
        "use_ipex is gone",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--use_ipex', '--foo']",
        "4.57 removed --use_ipex",
    ),
    (
        "no_cuda is gone",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--no_cuda']",
        "5.0 removed --no_cuda",
    ),
    (
        "ddp_backend ccl is gone",
        "run_qa.py: error: argument --ddp_backend/--ddp-backend: invalid choice: 'ccl' "
        "(choose from 'nccl', 'gloo', 'mpi', 'xccl', 'hccl', 'cncl', 'mccl')",
        "does not accept `ccl`",
    ),
    (
        "accelerate without ccl",
        "ValueError: Your assigned backend ccl is not avaliable, please use gloo",
        "CCL_WORKER_COUNT is not set",
    ),
    (
        "accelerate without ccl",
        "ValueError: Your assigned backend ccl is not available, please use gloo",
        "accelerate is 1.13 or newer",
    ),
    (
        "CCL_WORKER_COUNT",
        "ValueError: CPU distributed training backend is ccl. but CCL_WORKER_COUNT is not "
        "correctly set. Please use like 'export CCL_WORKER_COUNT = 1' to set.",
        "CCL_WORKER_COUNT of at least 1",
    ),
    ("bindings not imported", "AssertionError: Unknown backend type ccl", "was not imported"),
    ("module of the bindings", "ModuleNotFoundError: No module named 'torch_ccl'", "as module torch_ccl"),
    (
        "no MASTER_ADDR",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable MASTER_ADDR expected, but not set",
        "without MASTER_ADDR",
    ),
    ("no libmpi", "could not open the library: libmpi.so.12", "setvars.sh"),
    ("no mpirun", "bash: line 1: mpirun: command not found", "mpirun is not on PATH"),
    ("no mpirun", "mpirun: 62: mpiexec.hydra: not found", "mpiexec.hydra is not on PATH"),
    (
        "no such fabric",
        "find_provider(3064)..........: OFI fi_getinfo() failed (ofi_init.c:3064:find_provider:No data available)",
        "the fabric of FI_PROVIDER",
    ),
    (
        "no such fabric",
        "2026:11:22-13:49:59: 4069:[1] |CCL_ERROR| atl_ofi_helper.cpp:1253 "
        "atl_ofi_get_prov_list: can't create providers for name verbs",
        "the fabric of FI_PROVIDER",
    ),
    (
        "no transport",
        "RuntimeError: oneCCL: api_wrapper.cpp:39 api_wrappers_init: EXCEPTION: could not "
        "initialize any transport library",
        "could not start its transport",
    ),
    ("no transport", "init_transport: EXCEPTION: failed to initialize ATL", "could not start its transport"),
    (
        "more oneCCL workers than cores",
        "oneCCL: env.cpp:1 env_2_worker_affinity_auto: EXCEPTION: failed to implicitly set workers "
        "affinity, the number of workers (2) exceeds the number of available cores per process (1)",
        "2 workers, but the number of cores of each rank is 1",
    ),
    (
        "MPI finalized",
        "Attempting to use an MPI routine (internal_Comm_rank) before initializing or after finalizing MPICH",
        "second process group on ccl",
    ),
    (
        "gloo takes the loopback",
        "RuntimeError: Gloo connectFullMesh failed with [.../gloo/transport/tcp/pair.cc:144] "
        "no error: Connection refused, remote=[127.0.1.1]:41234",
        "127.0.1.1",
    ),
    (
        "gloo cannot connect",
        "RuntimeError: Gloo connectFullMesh failed with [.../pair.cc:144] timed out connecting: "
        "remote=[10.0.0.7]:41234",
        "cannot reach each other",
    ),
    ("unknown name", "getaddrinfo returned error -2", "cannot resolve the name"),
    (
        "hub out of reach",
        "NameResolutionError: Failed to resolve 'huggingface.co' ([Errno -2] Name or service not known)",
        "huggingface.co cannot be reached",
    ),
    ("name of the client", "hostname of the client socket cannot be retrieved. err=-3", "cannot look up"),
    (
        "port taken",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
        "is in use",
    ),
    (
        "shared memory full",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory.",
        "/dev/shm",
    ),
    (
        "shared memory full",
        "RuntimeError: unable to write to file </torch_7_1>: /dev/shm: No space left on device",
        "/dev/shm",
    ),
    ("disk full", "OSError: [Errno 28] No space left on device: '/data/x'", "file system is full"),
    ("illegal instruction", "Illegal instruction (core dumped)", "lacks instructions"),
    (
        "uneven batches",
        "failed: node0 rank 1 ended the script after 3 collectives, but node0 rank 0 waits in "
        "collective 4, which needs all ranks",
        "same number of steps",
    ),
    (
        "lightning devices",
        "ValueError: You set `devices=1` and `num_nodes=1` in Lightning, but the product (1 * 1) "
        "does not match the world size (2).",
        "2 ranks",
    ),
    ("no gpu", "AssertionError: Torch not compiled with CUDA enabled", "requires a GPU"),
    ("cores taken", "refused: node0 is taken: run first has cores 0-1", "reserved the cores"),
    ("killed", "rank 1 on node0 was ended by SIGKILL", "The script or another program sent SIGKILL"),
    (
        "out of memory",
        "rank 1 on node0 was ended by SIGKILL: memory ran out (oom_kill rose from 0 to 1)",
        "memory of its node",
    ),
    (
        "module of -m",
        "error: no module named my.own, neither in the working directory /root nor among the "
        "packages of /opt/orch/bin/python.",
        "they run in /root",
    ),
    (
        "file not found",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        "data/train.csv does not exist",
    ),
    ("module not found", "ModuleNotFoundError: No module named 'tiktoken'", "find the module tiktoken"),
    (
        "the other rank went away",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "Another rank ended",
    ),
    ("gloo at exit", "terminate called without an active exception", "destroy_process_group"),
]


@pytest.mark.parametrize(("name", "line", "cause"), LINES, ids=[line[0] for line in LINES])
def test_line_is_explained(name: str, line: str, cause: str) -> None:
    (explanation,) = explain(f"step 1\n{line}\nstep 2\n")
    assert explanation.name == name
    assert explanation.line == line.splitlines()[-1]
    assert cause in explanation.cause
    assert explanation.cure
    assert "{" not in explanation.cause + explanation.cure.replace("${", "")


def test_every_signature_has_a_line() -> None:
    assert {signature.name for signature in KNOWN_SIGNATURES} == {name for name, *_ in LINES}


def test_causes_come_before_their_effects() -> None:
    log = "\n".join(
        [
            "DistNetworkError: Failed to recv, got 0 bytes",
            "could not open the library: libmpi.so.12",
            "could not open the library: libmpi.so.12",
        ]
    )
    assert [explanation.name for explanation in explain(log)] == ["no libmpi", "the other rank went away"]


def make_traceback(error: str, *frames: str) -> str:
    lines = (f'  File "{path}", line 3, in bind\n    socket.bind(address)' for path in frames)
    return "\n".join(["Traceback (most recent call last):", *lines, error])


TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
RECORD = "/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors.py"
SCRIPT_ERRORS = [
    make_traceback("OSError: [Errno 98] Address already in use", "/home/me/train.py"),
    make_traceback("OSError: [Errno 98] Address already in use", RECORD, "/home/me/train.py"),
    make_traceback("OSError: [Errno 113] No route to host", TORCH, "/home/me/api.py"),
    make_traceback("OSError: [Errno 101] Network is unreachable", "/usr/lib/python3/socket.py"),
    make_traceback("AttributeError: module 'os' has no attribute 'exit'", "/home/me/train.py"),
    make_traceback("TypeError: train() got an unexpected keyword argument 'use_ipex'", "/t.py"),
    make_traceback("TypeError: Model.__init__() got an unexpected keyword argument 'no_cuda'", "/m.py"),
    "NameResolutionError: Failed to resolve 'api.example' ([Errno -2] Name or service not known)",
    "KeyError: 'environment variable RANK expected, but not set'",
    "max locked memory           (kbytes, -l) 64",
    "ValueError: SIGILL and SIGBUS are signals",
    "can't find interface Shape in the schema",
]


@pytest.mark.parametrize("log", SCRIPT_ERRORS, ids=[log.splitlines()[-1][:40] for log in SCRIPT_ERRORS])
def test_error_of_the_script_itself_is_not_explained(log: str) -> None:
    assert explain(log) == ()


def test_error_in_torch_distributed_is_explained_by_its_traceback() -> None:
    log = make_traceback("OSError: [Errno 98] Address already in use", "/home/me/t.py", TORCH)
    assert [explanation.name for explanation in explain(log)] == ["port taken"]


@pytest.mark.parametrize(
    "log",
    [
        "",
        "epoch 1 loss 0.5",
        "mpirun found",
        "Unknown backend type x",
        "FileNotFoundError: [Errno 2] No such file or directory: 'git'",  # a program
    ],
)
def test_other_lines_are_not_explained(log: str) -> None:
    assert explain(log) == ()


def test_patterns_match_one_line_and_are_fast() -> None:
    for signature in KNOWN_SIGNATURES:
        re.compile(signature.pattern)
        assert "\n" not in signature.pattern
    assert [a.name for a in explain("No space left on device " * 20_000)] == ["disk full"]
