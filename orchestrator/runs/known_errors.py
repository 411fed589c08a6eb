"""Signatures of known errors in the logs of failed runs, each with its cause and a cure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A pattern that identifies an error, with its cause and a cure.

    Attributes:
        name: The name of the error.
        pattern: A regular expression that is searched in a single line.
        cause: The cause of the error; `{1}` is replaced by the first group of the pattern.
        cure: What the user can do about it, with the same replacements.
        frame: A regular expression that the line or the file of the innermost frame of its traceback
            must match, so that an error of the script itself gets no explanation.
    """

    name: str
    pattern: str
    cause: str
    cure: str
    frame: str = ""


ONE_STACK = (
    "One stack's torch and bindings come by `orch setup` on this machine, by `orch provision` on "
    "nodes, and by `orch image build` for containers and pods."
)

# Names of the software that connects ranks: torch.distributed's store, gloo, MPI's hydra, oneCCL, ssh.
RENDEZVOUS = (
    r"torch[/.]distributed|DistNetworkError|c10d|socket has failed|gloo|oneccl_bindings|CCL_"
    r"|hydra|HYD|hydt|mpiexec|mpirun|PMI|^ssh: "
)

# Explanations are shown in this order: errors that cause other errors come first.
KNOWN_SIGNATURES = (
    # Incompatible versions.
    Signature(
        name="ipex for another torch",
        pattern=r"Intel® Extension for PyTorch\* needs to work with PyTorch ([\d.]+)\.\*, "
        r"but PyTorch (\S+) is found",
        cause="IPEX was built for torch {1}; this is torch {2}.",
        cure="Install the IPEX of a stack with this torch, or remove IPEX: "
        "`orch stacks find --torch {2}` names the set.",
    ),
    Signature(
        name="ipex 2.8 for another torch",
        pattern=r"AttributeError: module 'os' has no attribute 'exit'",
        frame=r"intel_extension_for_pytorch",
        cause="IPEX 2.8 met another torch than 2.8 and failed in its own words about it.",
        cure="Install torch 2.8.0 (stack intel-2.8), or remove intel-extension-for-pytorch.",
    ),
    Signature(
        name="transformers refuses ipex",
        pattern=r"Using IPEX but IPEX is not installed or IPEX's version does not match",
        cause="--use_ipex was asked for, and IPEX is missing or of another torch.",
        cure="`orch stacks check` says which; without --use_ipex it trains as well.",
    ),
    Signature(
        name="bindings for another torch",
        pattern=r"liboneccl_bindings_for_pytorch\.so: undefined symbol: (\S+)",
        cause="The ccl bindings were built for another torch than the one that is installed.",
        cure="Install the oneccl_bind_pt of a stack with this torch; `orch stacks check` names it.",
    ),
    Signature(
        name="our bindings for another torch",
        pattern=r"oneccl_bind_pt was built for torch ([\d.]+), but",
        cause="The ccl bindings were built for torch {1}, which is not the one installed.",
        cure=ONE_STACK,
    ),
    Signature(
        name="another torch than planned",
        pattern=r"error: (\S+) has torch (\S+), and was planned with (\S+?)\.? ",
        cause="The torch of {1} is not the one that the run was planned with: {2}, not {3}.",
        cure=ONE_STACK,
    ),
    Signature(
        name="use_ipex is gone",
        pattern=r"TrainingArguments\.__init__\(\) got an unexpected keyword argument 'use_ipex'"
        r"|Some specified arguments are not used by the HfArgumentParser:.*--use_ipex",
        cause="transformers 4.57 removed --use_ipex (it has had no effect since 4.53).",
        cure="Leave --use_ipex out, or take transformers 4.52.4 with accelerate 1.7.0.",
    ),
    Signature(
        name="no_cuda is gone",
        pattern=r"TrainingArguments\.__init__\(\) got an unexpected keyword argument 'no_cuda'"
        r"|Some specified arguments are not used by the HfArgumentParser:.*--no_cuda",
        cause="transformers 5.0 removed --no_cuda.",
        cure="Use --use_cpu, which is there since 4.32.",
    ),
    Signature(
        name="ddp_backend ccl is gone",
        pattern=r"argument --ddp_backend\S*: invalid choice: '?ccl\b",
        cause="transformers 5.1 no longer takes `ccl` as --ddp_backend.",
        cure="Leave --ddp_backend out: orch makes the process group on ccl before the script "
        "asks for one. By hand: transformers <= 5.0 with accelerate <= 1.12.",
    ),
    Signature(
        name="accelerate without ccl",
        pattern=r"Your assigned backend ccl is not ava(?:ilable|liable), please use gloo",
        cause="accelerate did not find ccl: CCL_WORKER_COUNT is not set, the bindings are not "
        "installed, or accelerate is 1.13 or newer.",
        cure="export CCL_WORKER_COUNT=1, with oneccl_bind_pt installed and accelerate <= 1.12.",
    ),
    Signature(
        name="CCL_WORKER_COUNT",
        pattern=r"CPU distributed training backend is ccl\. but CCL_WORKER_COUNT is not "
        r"correctly set",
        cause="transformers 4.20 to 4.28 want CCL_WORKER_COUNT of 1 or more for ccl.",
        cure="export CCL_WORKER_COUNT=1",
    ),
    Signature(
        name="bindings not imported",
        pattern=r"Unknown backend type ccl\b",
        cause="The module that registers ccl was not imported before init_process_group.",
        cure="import oneccl_bindings_for_pytorch first (torch_ccl up to 1.11), or start the "
        "script with `orch train`, which does it.",
    ),
    Signature(
        name="module of the bindings",
        pattern=r"No module named '(oneccl_bindings_for_pytorch|torch_ccl)'",
        cause="The ccl bindings are not installed under the name {1}.",
        cure="Install oneccl_bind_pt of the stack; its module is torch_ccl up to 1.11 and "
        "oneccl_bindings_for_pytorch from 1.12.",
    ),
    # The environment of the ranks.
    Signature(
        name="no MASTER_ADDR",
        pattern=r"env:// rendezvous: environment variable "
        r"(MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE) expected, but not set",
        cause="The ranks were started without {1}.",
        cure="Set {1} on every rank (MASTER_ADDR is the address of node0), or start them with "
        "`orch train`, which does.",
    ),
    Signature(
        name="no libmpi",
        pattern=r"could not open the library: libmpi\.so\.12"
        r"|libmpi\.so\.12: cannot open shared object file",
        cause="oneCCL does not find Intel MPI: setvars.sh of the bindings was not sourced.",
        cure='. "$(python -c "from oneccl_bindings_for_pytorch import cwd; print(cwd)")/env/setvars.sh"',
    ),
    Signature(
        name="no mpirun",
        pattern=r"(mpirun|mpiexec|mpiexec\.hydra): (?:command )?not found",
        cause="{1} is not on PATH: setvars.sh was not sourced, or the folder of the wheel "
        "impi-rt (bin/ of the environment) is missing from PATH.",
        cure="Source env/setvars.sh of the bindings, or put the environment's bin/ on PATH; "
        "`orch train` needs neither.",
    ),
    Signature(
        name="no such fabric",
        pattern=r"OFI fi_getinfo\(\) failed|can't create providers for name \w",
        cause="libfabric finds nothing on this node of the fabric that FI_PROVIDER names: its "
        "device, or a library that its provider wants.",
        cure="`orch nodes INVENTORY --json` says what is missing; --fabric auto takes what all "
        "nodes have, --fabric tcp what every node has.",
    ),
    Signature(
        name="no transport",
        pattern=r"could not initialize any transport library|failed to initialize ATL",
        cause="oneCCL could not start its transport (Intel MPI or libfabric).",
        cure="Source setvars.sh for CCL_ATL_TRANSPORT=mpi; with ofi, FI_PROVIDER=tcp works where shm does not.",
    ),
    Signature(
        name="more oneCCL workers than cores",
        pattern=r"env_2_worker_affinity_auto: EXCEPTION: .*number of workers \((\d+)\) exceeds "
        r"the number of available cores per process \((\d+)\)",
        cause="oneCCL was told to start {1} workers, and each rank has {2} core of its own.",
        cure="Set CCL_WORKER_COUNT to at most {2}, or give each rank more cores (a lower --ppn).",
    ),
    Signature(
        name="MPI finalized",
        pattern=r"Attempting to use an MPI routine .*before initializing or after finalizing",
        cause="MPI was called before it began or after it ended, as a second process group on ccl "
        "does when the first one has ended MPI.",
        cure="Make the process group once for the life of the process; a script that calls MPI "
        "itself has to initialize it first.",
    ),
    # Names, addresses and ports.
    Signature(
        name="gloo takes the loopback",
        pattern=r"Gloo connectFullMesh failed.*remote=\[127\.0\.1\.1\]",
        cause="The node's own name is 127.0.1.1 in /etc/hosts, and gloo told the others so.",
        cure="Set GLOO_SOCKET_IFNAME to the interface between the nodes, or take the line 127.0.1.1 out of /etc/hosts.",
    ),
    Signature(
        name="gloo cannot connect",
        pattern=r"Gloo connectFullMesh failed.*",
        cause="The ranks cannot reach each other over the interface that gloo chose.",
        cure="Set GLOO_SOCKET_IFNAME to the interface between the nodes; check the firewall.",
    ),
    Signature(
        name="no such interface for the KVS",
        pattern=r"CCL_ERROR\|.*can't find interface (\S*)",
        cause="oneCCL's key-value store was told to use the interface {1}, which this node lacks.",
        cure="Set CCL_KVS_IFACE to an interface that every node has, or leave it out; "
        "`orch train` names each node's own.",
    ),
    Signature(
        name="no route",
        pattern=r"No route to host|Network is unreachable",
        frame=RENDEZVOUS,
        cause="A node has no way to another one: a route is missing, or a firewall rejects.",
        cure="`ip route get ADDRESS` on the node; `orch provision` tests every pair of nodes.",
    ),
    Signature(
        name="hub out of reach",
        pattern=r"Failed to resolve '((?:[\w.-]+\.)?(?:huggingface\.co|hf\.co))'",
        cause="{1} cannot be reached from this node.",
        cure="Name a model and data that are files of the node (--set model_name_or_path=DIR), or "
        "fill HF_HOME beforehand and set HF_HUB_OFFLINE=1.",
    ),
    Signature(
        name="unknown name",
        pattern=r"getaddrinfo returned error -2|gai error: -2",
        cause="A node does not know the name of another one.",
        cure="Put the names of all nodes into /etc/hosts of each node, or start with the launcher's -iface.",
    ),
    Signature(
        name="name of the client",
        pattern=r"hostname of the client socket cannot be retrieved",
        cause="A node cannot look up the name of another one's address; the start takes 12 s and more.",
        cure="Put the names of all nodes into /etc/hosts of each node.",
    ),
    Signature(
        name="port taken",
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        frame=RENDEZVOUS,
        cause="The port of the rendezvous is taken, often by a job that is still alive unseen.",
        cure="Look for old ranks on node0 (`ss -ltnp`), end them, or take another MASTER_PORT.",
    ),
    # The machine.
    Signature(
        name="cores taken",
        pattern=r"\S+ is taken: run (\S+) has cores",
        cause="Another run has reserved the cores.",
        cure="--queue waits until they are free; `orch stop {1}` ends the other run.",
    ),
    Signature(
        name="out of memory",
        pattern=r"was ended by SIGKILL: memory ran out",
        cause="The kernel ended the rank because the memory of its node or container was used up.",
        cure="Use fewer ranks per node (--ppn), smaller batches or fewer DataLoader workers. The "
        "same command resumes a recipe from its newest checkpoint.",
    ),
    Signature(
        name="killed",
        pattern=r"was ended by SIGKILL$",
        cause="The script or another program sent SIGKILL to the rank. Neither the kernel's log nor "
        "its counters show that memory ran out.",
        cure="Look for what sends SIGKILL: the script itself, an administrator, a memory guard such "
        "as earlyoom, or a batch system. The same command resumes a recipe from its newest checkpoint, and "
        "--max-restarts N does so without you.",
    ),
    Signature(
        name="locked memory",
        pattern=r"set max locked memory|RLIMIT_MEMLOCK is \d+ bytes|fi_mr_reg failed"
        r"|(?:ibv_|fi_)(?:reg_mr|mr_reg|create_cq)\b.*Cannot allocate memory",
        cause="The network card needs more locked memory than this session may have (ulimit -l).",
        cure="memlock unlimited in /etc/security/limits.conf (docker: --ulimit memlock=-1), then "
        "log in anew; or FI_PROVIDER=tcp.",
    ),
    Signature(
        name="shared memory full",
        pattern=r"ended by SIGBUS|Fatal Python error: Bus error|killed by signal: Bus error"
        r"|/dev/shm.*No space left|No space left.*(?:/dev/shm|shm_open)",
        cause="A rank touched mapped memory that is not there, in most cases because /dev/shm is "
        "full or too small (containers get 64 MB).",
        cure="Give the container a larger /dev/shm (docker: --shm-size), or use fewer DataLoader workers.",
    ),
    Signature(
        name="disk full",
        pattern=r"No space left on device",
        cause="A file system is full: that of the run, of the cache, or /tmp.",
        cure="`df -h` on the node names it; --runs-dir and HF_HOME choose other places.",
    ),
    Signature(
        name="illegal instruction",
        pattern=r"Fatal Python error: Illegal instruction|ended by SIGILL"
        r"|^Illegal instruction(?: \(core dumped\))?$",
        cause="The CPU lacks instructions that the wheel was built with (IPEX 1.10 wants AVX-512).",
        cure="Run on newer CPUs, or on stack current, whose torch chooses at run time.",
    ),
    # The script.
    Signature(
        name="uneven batches",
        pattern=r"ended the script after \d+ collectives, but .* in collective \d+",
        cause="The script does not do the same number of steps on every rank.",
        cure="Give every rank the same number of batches (DistributedSampler, drop_last=True), or "
        "use the join() of DistributedDataParallel.",
    ),
    Signature(
        name="lightning devices",
        pattern=r"You set `devices=\S+` and `num_nodes=\S+` in Lightning, but the product"
        r".*does not match the world size \((\d+)\)",
        cause="Lightning's Trainer does not have the layout of this run, which has {1} ranks.",
        cure='Trainer(accelerator="cpu", devices=PPN, num_nodes=NODES, strategy="ddp") with the '
        "numbers of --ppn and --nodes.",
    ),
    Signature(
        name="no gpu",
        pattern=r"Torch not compiled with CUDA enabled|Found no NVIDIA driver on your system"
        r"|No CUDA GPUs are available"
        r"|deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False",
        cause="The script asks for a GPU, and the ranks train on CPUs.",
        cure='Use device="cpu" in place of .cuda() and "cuda", and torch.load(..., map_location="cpu").',
    ),
    Signature(
        name="module of -m",
        pattern=r"error: no module named (\S+), neither in the working directory (\S+)",
        cause="The ranks do not find {1}: they run in {2} and with the packages of the stack.",
        cure="Install the package into the stack's environment on every node, or in the image.",
    ),
    Signature(
        name="module not found",
        pattern=r"ModuleNotFoundError: No module named '([^']+)'",
        cause="There is no module {1} where the ranks run.",
        cure="Install it there: into orch's environment on this machine, into the stack's on every "
        "node, or in the image. `orch sync INVENTORY --data FOLDER` brings your own files.",
    ),
    Signature(
        name="file not found",
        pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^']*[/.][^']*)'",
        cause="There is no {1} where the rank runs. Relative paths begin in the folder where you "
        "called orch on this machine, in the SSH user's home folder on nodes, in the run's folder "
        "on Slurm and in the image's working directory in pods.",
        cure="`orch sync INVENTORY --data FOLDER` brings files to all nodes; give the script their "
        "absolute path there.",
    ),
    # Consequences of a failure elsewhere, which are shown last.
    Signature(
        name="the other rank went away",
        pattern=r"DistNetworkError: Failed to recv, got 0 bytes"
        r"|Read error \[.*Connection reset by peer|Connection closed by peer \[",
        cause="Another rank ended while this one waited for it; the reason is in its log.",
        cure="Read the log of the first rank that failed.",
    ),
    Signature(
        name="gloo at exit",
        pattern=r"terminate called without an active exception",
        cause="The process ended without destroy_process_group, and gloo's threads were left.",
        cure="Call torch.distributed.destroy_process_group() at the end, after `del` of the "
        "DistributedDataParallel object.",
    ),
)
