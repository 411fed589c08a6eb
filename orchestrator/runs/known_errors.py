"""Signatures of known errors in the logs of failed runs, each with its cause and a hint."""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN_HINT = "Rename {1}, and delete the folder __pycache__ next to it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A pattern that identifies an error, with its cause and a hint.

    Attributes:
        name: the name of the error.
        pattern: a regular expression that is searched in a single line.
        cause: the cause of the error; `{1}` is replaced by the first group of the pattern.
        hint: what the user can do about it, with the same replacements.
        cause_on_gpus: the cause on nodes with GPUs, if it is another one.
        hint_on_gpus: the same for the hint.
        frame: a regular expression that the line or the file of the innermost frame of its traceback
            must match, so that an error of the script itself gets no explanation; with the same replacements.
        caller: a regular expression that the file and the function of one of the frames must match.
        from_script: whether one of the frames must be of the user's code.
        hides: the names of signatures whose errors are consequences of this one.
        may_be_harmless: whether scripts often continue after this error. If the exception that ended the
            rank is known, only that exception is explained by this signature.
    """

    name: str
    pattern: str
    cause: str
    hint: str
    cause_on_gpus: str = ""
    hint_on_gpus: str = ""
    frame: str = ""
    caller: str = ""
    from_script: bool = False
    hides: tuple[str, ...] = ()
    may_be_harmless: bool = False

    def explanation(self, *, on_gpus: bool) -> tuple[str, str]:
        """Return the cause and the hint on nodes with or without GPUs."""
        if not on_gpus:
            return self.cause, self.hint
        return self.cause_on_gpus or self.cause, self.hint_on_gpus or self.hint


ONE_STACK = (
    "`orch setup` installs the torch and the bindings of one stack on this machine, `orch provision` on nodes, and "
    "`orch image build` in images for containers and pods."
)

# Software that connects ranks, in a line of its log or in the path of a frame: torch.distributed's store, gloo, MPI's
# hydra, oneCCL, ssh. Neither a script in a folder `hydra` nor the package of that name is meant.
RENDEZVOUS = (
    r"\btorch\.distributed\.|-packages/torch/distributed/|\bc10d\b|socket has failed|\bGloo\b|/gloo/transport/"
    r"|-packages/oneccl_bindings_for_pytorch/|CCL_ERROR|\bHYD[A-Z]*_|\bhydra_|\bhydt_|\bmpiexec\b|\bmpirun\b|^ssh: "
)

# The path of a library's file, and that of another file at the end of an ImportError.
LIBRARY_FILE = r"-packages/|/lib/python3[^/]*/"
USER_FILE = r"\((?!\S*-packages/|\S*/lib/python3)(/\S*/(\w+)\.py)\)"
HIDDEN_CAUSE = (
    "The file {2}.py of your project has the same name as a package, so Python imports the file instead of the package."
)
# Variables with the ranks of other launchers, which orch sets never or only with some launchers.
LAUNCHER_VARIABLES = (
    r"SLURM_(?:PROCID|LOCALID|NTASKS|NPROCS|NNODES|NODEID|JOB_ID|JOBID|JOB_NODELIST|NODELIST|STEP_NODELIST|JOB_NUM_NODES"
    r"|NTASKS_PER_NODE|TASKS_PER_NODE|LAUNCH_NODE_IPADDR|GPUS_ON_NODE)|OMPI_COMM_WORLD_\w+|MV2_COMM_WORLD_\w+|PMI_\w+"
    r"|PALS_\w+|FLUX_TASK_RANK"
)
RANK_ARGUMENTS = (
    r"-(?:local[-_]rank|rank|node[-_]rank|machine[-_]rank|world[-_]size|master[-_](?:addr|port)|nproc[-_]per[-_]node|nnodes"
    r"|dist[-_]url)\b"
)
RANK_VARIABLES = "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT"

# Explanations are shown in this order: errors that cause other errors come first.
KNOWN_SIGNATURES = (
    # Incompatible versions.
    Signature(
        name="ipex for another torch",
        pattern=r"Intel® Extension for PyTorch\* needs to work with PyTorch ([\d.]+)\.\*, "
        r"but PyTorch (\S+) is found",
        cause="IPEX was built for torch {1}; this is torch {2}.",
        hint="Install the IPEX of a stack with this torch (`orch stacks` lists them), or remove IPEX.",
    ),
    Signature(
        name="ipex 2.8 for another torch",
        pattern=r"AttributeError: module 'os' has no attribute 'exit'",
        frame=r"intel_extension_for_pytorch",
        cause="IPEX 2.8 requires torch 2.8, and its own error message failed.",
        hint="Install torch 2.8.0 (stack intel-2.8), or remove intel-extension-for-pytorch.",
    ),
    Signature(
        name="transformers refuses ipex",
        pattern=r"Using IPEX but IPEX is not installed or IPEX's version does not match",
        cause="--use_ipex requires IPEX, which is missing or was built for another torch.",
        hint="`orch stacks check` shows which. Training also works without --use_ipex.",
    ),
    Signature(
        name="bindings for another torch",
        pattern=r"liboneccl_bindings_for_pytorch\.so: undefined symbol: (\S+)",
        cause="The ccl bindings were built for another torch than the installed one.",
        hint="Install the oneccl_bind_pt of a stack with this torch; `orch stacks check` names its version.",
    ),
    Signature(
        name="our bindings for another torch",
        pattern=r"oneccl_bind_pt was built for torch ([\d.]+), but",
        cause="The ccl bindings were built for torch {1}, which is not the installed one.",
        hint=ONE_STACK,
    ),
    Signature(
        name="another torch than planned",
        pattern=r"error: (\S+) has torch (\S+), and was planned with (\S+?)\.? ",
        cause="{1} has torch {2}, but the run was planned for {3}.",
        hint=ONE_STACK,
    ),
    Signature(
        name="use_ipex is gone",
        pattern=r"TrainingArguments\.__init__\(\) got an unexpected keyword argument 'use_ipex'"
        r"|Some specified arguments are not used by the HfArgumentParser:.*--use_ipex",
        cause="transformers 4.57 removed --use_ipex (it has had no effect since 4.53).",
        hint="Omit --use_ipex, or use transformers 4.52.4 with accelerate 1.7.0.",
    ),
    Signature(
        name="no_cuda is gone",
        pattern=r"TrainingArguments\.__init__\(\) got an unexpected keyword argument 'no_cuda'"
        r"|Some specified arguments are not used by the HfArgumentParser:.*--no_cuda",
        cause="transformers 5.0 removed --no_cuda.",
        hint="Use --use_cpu, which transformers has had since 4.32.",
    ),
    Signature(
        name="ddp_backend ccl is gone",
        pattern=r"argument --ddp_backend\S*: invalid choice: '?ccl\b",
        cause="transformers 5.1 does not accept `ccl` for --ddp_backend.",
        hint="Omit --ddp_backend: orch creates the process group on ccl before the script does. Without orch: "
        "transformers <= 5.0 with accelerate <= 1.12.",
    ),
    Signature(
        name="accelerate without ccl",
        pattern=r"Your assigned backend ccl is not ava(?:ilable|liable), please use gloo",
        cause="accelerate did not find ccl: CCL_WORKER_COUNT is not set, the bindings are not "
        "installed, or accelerate is 1.13 or newer.",
        hint="Set CCL_WORKER_COUNT=1, with oneccl_bind_pt installed and accelerate <= 1.12.",
    ),
    Signature(
        name="CCL_WORKER_COUNT",
        pattern=r"CPU distributed training backend is ccl\. but CCL_WORKER_COUNT is not "
        r"correctly set",
        cause="transformers 4.20 to 4.28 require a CCL_WORKER_COUNT of at least 1 for ccl.",
        hint="Set CCL_WORKER_COUNT=1.",
    ),
    Signature(
        name="bindings not imported",
        pattern=r"Unknown backend type ccl\b",
        cause="The module that registers ccl was not imported before init_process_group.",
        hint="Import oneccl_bindings_for_pytorch first (torch_ccl up to 1.11), or start the script with `orch train`, "
        "which imports it.",
    ),
    Signature(
        name="module of the bindings",
        pattern=r"No module named '(oneccl_bindings_for_pytorch|torch_ccl)'",
        may_be_harmless=True,
        cause="The ccl bindings are not installed as module {1}.",
        hint="Install oneccl_bind_pt of the stack; its module is torch_ccl up to 1.11 and "
        "oneccl_bindings_for_pytorch from 1.12.",
    ),
    Signature(
        name="DeepSpeed builds ccl",
        pattern=r"^ValueError: Didn't find CCL_ROOT, install oneCCL",
        cause="DeepSpeed chooses ccl wherever oneccl_bindings_for_pytorch can be imported, whatever --backend is, and "
        "then compiles its own code against an installed oneCCL.",
        hint="Let DeepSpeed use the process group that orch created. Before deepspeed.init_distributed() and "
        'deepspeed.initialize(): deepspeed.accelerator.get_accelerator()._communication_backend_name = "gloo".',
    ),
    # The environment of the ranks.
    Signature(
        name="no main guard",
        pattern=r"^[A-Za-z_][\w.]*(?:Error|Exception)\b",
        caller=r"/multiprocessing/spawn\.py _fixup_main_from_(?:path|name)$",
        hides=("port taken", "port of the script", "no MASTER_ADDR", "module not found", "file not found"),
        cause="A worker process, such as one of a DataLoader, ran the script again from its first line, because its "
        "start method is spawn or forkserver.",
        hint='Put everything except imports, functions and classes below `if __name__ == "__main__":`.',
    ),
    Signature(
        name="variable of another launcher",
        pattern=rf"^KeyError: '({LAUNCHER_VARIABLES})'$",
        frame=r"^<frozen os>$|/os\.py$",
        cause="The script reads {1}, which another launcher sets.",
        hint=f"Read the variables that orch sets on every target, as torchrun does: {RANK_VARIABLES}.",
        may_be_harmless=True,
    ),
    Signature(
        name="rank as an argument",
        pattern=rf"error: the following arguments are required: .*-{RANK_ARGUMENTS}|Missing option '-{RANK_ARGUMENTS}",
        cause="The script expects its rank as an argument, as from torch.distributed.launch.",
        hint=f"Read it from the environment, as with torchrun: {RANK_VARIABLES}. Example: "
        'parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))',
    ),
    Signature(
        name="rank -1",
        pattern=r"^RuntimeError: (?:Device index must not be negative|Invalid device string: 'cuda:-1')",
        cause="The script selects the GPU of its local rank, but the ranks train on CPUs. The local rank is -1 because "
        "no argument sets it.",
        hint='Use the device "cpu", and read the local rank from the environment: int(os.environ["LOCAL_RANK"]).',
        cause_on_gpus="The script selects the GPU of its local rank, which is -1 because no argument sets it.",
        hint_on_gpus='Read the local rank from the environment: int(os.environ["LOCAL_RANK"]).',
    ),
    # GPUs.
    Signature(
        name="GPU out of memory",
        pattern=r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)",
        cause="A rank tried to allocate {1} more than its GPU has free.",
        hint="Use smaller batches, gradient accumulation or activation checkpointing. `nvidia-smi` on the node shows "
        "whether other programs use the GPU. If much memory is reserved but unallocated: --env "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
    Signature(
        name="assertion on the GPU",
        pattern=r"\.cu:\d+: .*Assertion `(.+)` failed",
        hides=("error on the GPU",),
        cause="An assertion of a kernel on the GPU failed: `{1}`. Usually an index is outside of its tensor, or a "
        "label is not a class of the model.",
        hint="--env CUDA_LAUNCH_BLOCKING=1 makes the traceback end at the operation that failed; without it, it ends "
        "at a later one.",
    ),
    Signature(
        name="error on the GPU",
        pattern=r"CUDA error: (device-side assert triggered|an illegal memory access was encountered)",
        cause="A kernel on the GPU failed ({1}). The traceback ends at a later operation.",
        hint="--env CUDA_LAUNCH_BLOCKING=1 makes it end at the operation that failed.",
    ),
    Signature(
        name="no such GPU",
        pattern=r"CUDA error: invalid device ordinal",
        cause="The script selects a GPU that its node does not have, or that CUDA_VISIBLE_DEVICES hides.",
        hint='Select it by the local rank: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])). RANK counts over all '
        "nodes. Use at most as many ranks per node as it has GPUs: --ppn auto.",
    ),
    Signature(
        name="GPU of several ranks",
        pattern=r"Duplicate GPU detected ?: rank (\d+) and rank (\d+)",
        cause="Ranks {1} and {2} use the same GPU, which NCCL does not support.",
        hint="Select the GPU of each rank before the first collective: "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])). Use at most as many ranks per node as it has GPUs: '
        "--ppn auto.",
    ),
    Signature(
        name="timeout of NCCL",
        pattern=r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+),"
        r".*Timeout\(ms\)=(\d+)",
        cause="Ranks waited {3} ms for another one in collective {1} ({2}): it was slower, or never reached it.",
        hint="The stack traces of the ranks behind show where they are (`orch logs ID`). If they are only slow, use a "
        "longer timeout: init_process_group(timeout=...), ddp_timeout of TrainingArguments.",
    ),
    Signature(
        name="no MASTER_ADDR",
        pattern=r"env:// rendezvous: environment variable "
        r"(MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE) expected, but not set",
        cause="The ranks were started without {1}.",
        hint="Set {1} for every rank (MASTER_ADDR is the address of node0), or start the ranks with `orch train`, "
        "which sets it.",
    ),
    Signature(
        name="no libmpi",
        pattern=r"could not open the library: libmpi\.so\.12"
        r"|libmpi\.so\.12: cannot open shared object file",
        cause="oneCCL does not find Intel MPI because setvars.sh of the bindings was not sourced.",
        hint='. "$(python -c "from oneccl_bindings_for_pytorch import cwd; print(cwd)")/env/setvars.sh"',
    ),
    Signature(
        name="no mpirun",
        pattern=r"(mpirun|mpiexec|mpiexec\.hydra): (?:command )?not found",
        cause="{1} is not on PATH. Either setvars.sh was not sourced, or the bin/ folder of the environment with the "
        "wheel impi-rt is not on PATH.",
        hint="Source env/setvars.sh of the bindings, or add the environment's bin/ to PATH. `orch train` needs "
        "neither.",
    ),
    Signature(
        name="no such fabric",
        pattern=r"OFI fi_getinfo\(\) failed|can't create providers for name \w",
        cause="libfabric does not find the fabric of FI_PROVIDER on this node: its device or a library is missing.",
        hint="`orch nodes INVENTORY --json` shows what is missing. --fabric auto chooses a fabric that all nodes have; "
        "--fabric tcp always works.",
    ),
    Signature(
        name="no transport",
        pattern=r"could not initialize any transport library|failed to initialize ATL",
        cause="oneCCL could not start its transport (Intel MPI or libfabric).",
        hint="Source setvars.sh for CCL_ATL_TRANSPORT=mpi. With ofi, use FI_PROVIDER=tcp if shm fails.",
    ),
    Signature(
        name="more oneCCL workers than cores",
        pattern=r"env_2_worker_affinity_auto: EXCEPTION: .*number of workers \((\d+)\) exceeds "
        r"the number of available cores per process \((\d+)\)",
        cause="oneCCL should start {1} workers, but the number of cores of each rank is {2}.",
        hint="Set CCL_WORKER_COUNT to at most {2}, or give each rank more cores with a lower --ppn.",
    ),
    Signature(
        name="MPI finalized",
        pattern=r"Attempting to use an MPI routine .*before initializing or after finalizing",
        cause="The script called MPI before its initialization or after its end. A second process group on ccl does so "
        "if the first one has ended MPI.",
        hint="Create the process group once per process. A script that calls MPI itself must initialize it first.",
    ),
    # Names, addresses and ports.
    Signature(
        name="gloo takes the loopback",
        pattern=r"Gloo connectFullMesh failed.*remote=\[127\.0\.1\.1\]",
        cause="/etc/hosts maps the node's own name to 127.0.1.1, so gloo gives that address to the other ranks.",
        hint="Set GLOO_SOCKET_IFNAME to the interface between the nodes, or remove the line 127.0.1.1 from /etc/hosts.",
    ),
    Signature(
        name="gloo cannot connect",
        pattern=r"Gloo connectFullMesh failed.*",
        cause="The ranks cannot reach each other over the interface that gloo chose.",
        hint="Set GLOO_SOCKET_IFNAME to the interface between the nodes, and check the firewall.",
    ),
    Signature(
        name="no such interface for the KVS",
        pattern=r"CCL_ERROR\|.*can't find interface (\S*)",
        cause="CCL_KVS_IFACE names the interface {1}, which this node does not have.",
        hint="Set CCL_KVS_IFACE to an interface that every node has, or omit it: `orch train` sets it for each node.",
    ),
    Signature(
        name="no route",
        pattern=r"No route to host|Network is unreachable",
        frame=RENDEZVOUS,
        cause="A node cannot reach another one: a route is missing, or a firewall rejects the connection.",
        hint="Run `ip route get ADDRESS` on the node. `orch provision` tests every pair of nodes.",
    ),
    Signature(
        name="hub out of reach",
        pattern=r"Failed to resolve '((?:[\w.-]+\.)?(?:huggingface\.co|hf\.co))'",
        cause="{1} cannot be reached from this node.",
        hint="`orch sync INVENTORY --model NAME` and `--data NAME` copy a model or data set of the hub to all nodes.",
    ),
    Signature(
        name="not on the node",
        pattern=r"We couldn't connect to '\S+' to load th|Couldn't reach '\S+' on the Hub \(Offline"
        r"|outgoing traffic has been disabled|: offline mode is enabled"
        r"|cannot find the requested files in the local cache",
        cause="A model or data set is not on this node, and the rank does not ask the hub (HF_HUB_OFFLINE).",
        hint="`orch sync INVENTORY --model NAME` or `--data NAME` copies it to all nodes. --env HF_HUB_OFFLINE=0 lets "
        "ranks download.",
        may_be_harmless=True,
    ),
    Signature(
        name="unknown name",
        pattern=r"getaddrinfo returned error -2|gai error: -2",
        cause="A node cannot resolve the name of another node.",
        hint="Add the names of all nodes to /etc/hosts on each node, or use the launcher's -iface.",
    ),
    Signature(
        name="name of the client",
        pattern=r"hostname of the client socket cannot be retrieved",
        may_be_harmless=True,
        cause="A node cannot look up the name that belongs to another node's address, so the start takes 12 s or more.",
        hint="Add the names of all nodes to /etc/hosts on each node.",
    ),
    Signature(
        name="port of the script",
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        frame=RENDEZVOUS,
        from_script=True,
        hides=("port taken",),
        cause="The script opens a port that another rank of this node or another program already uses.",
        hint="Use the process group that orch created: dist.init_process_group() without init_method, store and port. "
        "To open a port for another purpose, listen on one rank only, or on port 0.",
    ),
    Signature(
        name="port taken",
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        frame=RENDEZVOUS,
        cause="The port of the rendezvous is in use, often by ranks of an earlier job.",
        hint="Find old ranks on node0 (`ss -ltnp`) and end them, or set another MASTER_PORT.",
    ),
    # The machine.
    Signature(
        name="cores taken",
        pattern=r"\S+ is taken: run (\S+) has (cores|GPUs)",
        cause="Another run has reserved the {2}.",
        hint="--wait-for-cores waits until they are free. `orch stop {1}` ends the other run.",
    ),
    Signature(
        name="out of memory",
        pattern=r"was ended by SIGKILL: memory ran out",
        cause="The kernel ended the rank because the memory of its node or container was exhausted.",
        hint="Use fewer ranks per node (--ppn), smaller batches or fewer DataLoader workers. "
        "`orch resume` continues the run from its newest checkpoint.",
    ),
    Signature(
        name="killed",
        pattern=r"was ended by SIGKILL$",
        cause="The script or another program sent SIGKILL to the rank. Neither the kernel's log nor its counters show "
        "that memory ran out.",
        hint="Find what sends SIGKILL: the script itself, an administrator, a memory guard such as earlyoom, or a "
        "batch system. `orch resume` continues the run from its newest checkpoint; --max-restarts N does so "
        "automatically.",
    ),
    Signature(
        name="locked memory",
        pattern=r"set max locked memory|RLIMIT_MEMLOCK is \d+ bytes|fi_mr_reg failed"
        r"|(?:ibv_|fi_)(?:reg_mr|mr_reg|create_cq)\b.*Cannot allocate memory",
        cause="The network card needs more locked memory than this session allows (ulimit -l).",
        hint="Set memlock to unlimited in /etc/security/limits.conf (docker: --ulimit memlock=-1) and log in again, or "
        "set FI_PROVIDER=tcp.",
    ),
    Signature(
        name="shared memory full",
        pattern=r"ended by SIGBUS|Fatal Python error: Bus error|killed by signal: Bus error"
        r"|/dev/shm.*No space left|No space left.*(?:/dev/shm|shm_open)",
        cause="A rank used mapped memory that could not be allocated, usually because /dev/shm is full or too small "
        "(containers get 64 MB).",
        hint="Give the container a larger /dev/shm (docker: --shm-size), or use fewer DataLoader workers.",
    ),
    Signature(
        name="disk full",
        pattern=r"No space left on device",
        cause="A file system is full: that of the run, of the cache, or /tmp.",
        hint="`df -h` on the node shows which. --runs-dir and HF_HOME select other folders.",
    ),
    Signature(
        name="illegal instruction",
        pattern=r"Fatal Python error: Illegal instruction|ended by SIGILL"
        r"|^Illegal instruction(?: \(core dumped\))?$",
        cause="The CPU lacks instructions that the wheel requires (IPEX 1.10 requires AVX-512).",
        hint="Use newer CPUs, or the stack current, whose torch selects its code at run time.",
    ),
    # The script.
    Signature(
        name="uneven batches",
        pattern=r"ended the script after \d+ collectives(?: of the group of ranks \S+)?, but .* in collective \d+",
        cause="The script does not do the same number of steps on every rank.",
        hint="Give every rank the same number of batches (DistributedSampler, drop_last=True), or use join() of "
        "DistributedDataParallel.",
    ),
    Signature(
        name="exit in the script",
        pattern=r"ended without finishing the script \(exit code 0\)",
        cause="The script or a library ended the process of that rank, such as by os._exit(0), while other ranks "
        "needed it.",
        hint="End the script on every rank at the same place, and by sys.exit() with a code other than 0 after an "
        "error.",
    ),
    Signature(
        name="lightning devices",
        pattern=r"You set `devices=\S+` and `num_nodes=\S+` in Lightning, but the product"
        r".*does not match the world size \((\d+)\)",
        cause="The layout of Lightning's Trainer differs from that of this run, which has a world size of {1}.",
        hint='Use Trainer(accelerator="cpu", devices=PPN, num_nodes=NODES, strategy="ddp") with the values of --ppn '
        "and --nodes.",
        hint_on_gpus='Use Trainer(accelerator="gpu", devices=PPN, num_nodes=NODES, strategy="ddp") with the values of '
        "--ppn and --nodes.",
    ),
    Signature(
        name="device_ids of DDP",
        pattern=r"DistributedDataParallel device_ids and output_device arguments only work with single-device",
        cause="The script passes a GPU number (device_ids) to DistributedDataParallel, but the model is on the CPU.",
        hint="Omit device_ids and output_device: DistributedDataParallel(model).",
        hint_on_gpus="Move the model to the GPU of its rank first: model.to(device).",
    ),
    Signature(
        name="unused parameters",
        pattern=r"^RuntimeError: Expected to have finished reduction in the prior iteration",
        cause="The loss of a step does not depend on some parameters of the model, and DistributedDataParallel waits "
        "for their gradients.",
        hint="Freeze or remove them (requires_grad_(False)), or use DistributedDataParallel(model, "
        "find_unused_parameters=True). Trainer: ddp_find_unused_parameters=True. Lightning: "
        'strategy="ddp_find_unused_parameters_true". TORCH_DISTRIBUTED_DEBUG=INFO by --env names them.',
    ),
    Signature(
        name="monitored_barrier",
        pattern=r"^ValueError: monitored_barrier is only implemented for GLOO backend",
        cause="monitored_barrier() works only with gloo, but the group uses another backend.",
        hint="Use torch.distributed.barrier(): orch itself reports missing ranks. Or use --backend gloo.",
    ),
    Signature(
        name="question to the user",
        pattern=r"^EOFError(?:: EOF when reading a line)?$",
        frame=r"^EOFError: |/getpass\.py$",
        cause="The script asks a question (input(), getpass()), but ranks have no terminal.",
        hint="Pass the value as an argument of the script (after --), or as a variable: --env NAME=VALUE, for secrets "
        "--env-file FILE.",
        may_be_harmless=True,
    ),
    Signature(
        name="login of wandb",
        pattern=r"^wandb\.errors\.\w*\.?UsageError: (?:api_key not configured|No API key configured)",
        cause="wandb asks for an API key, but ranks have no terminal.",
        hint="Write WANDB_API_KEY=... into a file for --env-file, or use --env WANDB_MODE=offline.",
    ),
    Signature(
        name="debugger",
        pattern=r"^bdb\.BdbQuit$",
        cause="The script stops in the debugger (breakpoint(), pdb.set_trace()), but ranks have no terminal.",
        hint="Remove the breakpoint, or disable all of them: --env PYTHONBREAKPOINT=0. `orch logs ID` shows what ranks "
        "print.",
    ),
    Signature(
        name="notebook",
        pattern=r"^NameError: name '(get_ipython|display)' is not defined",
        cause="The script contains code of a notebook: {1} exists only in Jupyter.",
        hint="Remove the code that was a line with ! or % in the notebook. Install packages with --requirements FILE.",
    ),
    Signature(
        name="relative import",
        pattern=r"^ImportError: attempted relative import (?:with no known parent package|beyond top-level package)",
        cause="A script that runs as a file has no parent package, so imports with a leading dot fail.",
        hint="Run it as a module, in the folder that contains its package: orch train -m PACKAGE.MODULE.",
        may_be_harmless=True,
    ),
    Signature(
        name="hidden package",
        pattern=rf"^ImportError: cannot import name '\w+' from (?:partially initialized module )?'\S+' .*{USER_FILE}$",
        frame="^{1}$",
        cause=HIDDEN_CAUSE,
        hint=HIDDEN_HINT,
        may_be_harmless=True,
    ),
    Signature(
        name="hidden package",
        pattern=rf"^ImportError: cannot import name '\w+' from (?:partially initialized module )?'\S+' .*{USER_FILE}$",
        frame=LIBRARY_FILE,
        cause=HIDDEN_CAUSE,
        hint=HIDDEN_HINT,
        may_be_harmless=True,
    ),
    Signature(
        name="hidden package",
        pattern=r"\(consider renaming '(/\S*/(\w+)\.py)' since it has the same name as",
        cause=HIDDEN_CAUSE,
        hint=HIDDEN_HINT,
        may_be_harmless=True,
    ),
    Signature(
        name="hidden package",
        pattern=r"^AttributeError: (partially initialized module '(\w+)') has no attribute '\w+' \(most likely due to",
        frame=r"/{2}\.py$",
        cause=HIDDEN_CAUSE,
        hint="Rename the file {2}.py, and delete the folder __pycache__ next to it.",
        may_be_harmless=True,
    ),
    Signature(
        name="hidden package",
        pattern=r"^ModuleNotFoundError: (No module named '[\w.]+'); '(\w+)' is not a package$",
        from_script=True,
        cause="Python imports a single file {2}.py in place of the package {2}: usually a file of your project with "
        "its name.",
        hint="Rename the file {2}.py, and delete the folder __pycache__ next to it.",
        may_be_harmless=True,
    ),
    Signature(
        name="package for GPUs",
        pattern=r"ModuleNotFoundError: No module named '(apex|flash_attn|xformers|bitsandbytes|triton|amp_C|vllm)\b"
        r"|(FlashAttention2) has been toggled on, but it cannot be used",
        cause="{1}{2} is for GPUs, but the ranks train on CPUs.",
        hint='Do not use it. In transformers, use attn_implementation="sdpa". For BF16, use --precision or '
        'torch.autocast("cpu", dtype=torch.bfloat16).',
        cause_on_gpus="The ranks do not find {1}{2}.",
        hint_on_gpus="Install it into the environment of the ranks: --with PACKAGE, or there if you use --venv.",
        may_be_harmless=True,
    ),
    Signature(
        name="no gpu",
        pattern=r"Distributed package doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs"
        r"|Torch not compiled with CUDA enabled|Found no NVIDIA driver on your system"
        r"|No CUDA GPUs are available"
        r"|deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False"
        r"|module 'torch\._C' has no attribute '_cuda_\w+'",
        may_be_harmless=True,
        cause="The script requires a GPU, but the ranks train on CPUs.",
        hint='Use device="cpu" instead of .cuda() and "cuda", torch.load(..., map_location="cpu"), and no '
        "torch.cuda.set_device().",
        cause_on_gpus="The script requires a GPU, and its node has some, but torch cannot use them.",
        hint_on_gpus="Use an environment whose torch is built for GPUs: --venv FOLDER --backend nccl. If it is, check "
        "`nvidia-smi` on the node and CUDA_VISIBLE_DEVICES.",
    ),
    Signature(
        name="torchvision for GPUs",
        pattern=r"operator torchvision::nms does not exist",
        cause="The torchvision that is installed was built for another torch: that of PyPI needs the CUDA build.",
        hint="Take the CPU build: add the line --extra-index-url https://download.pytorch.org/whl/cpu to the "
        "requirements file.",
    ),
    Signature(
        name="module of -m",
        pattern=r"error: no module named (\S+), neither in the working directory (\S+)",
        cause="The ranks do not find {1}: they run in {2} and with the packages of the stack.",
        hint="Install the package into the stack's environment on every node, or in the image.",
    ),
    Signature(
        name="module not found",
        pattern=r"ModuleNotFoundError: No module named '([^']+)'",
        may_be_harmless=True,
        cause="The ranks do not find the module {1}.",
        hint="Your own modules go to the nodes with the script if they are in its project (--project FOLDER). "
        "Packages: --requirements FILE, or a block in the script; in containers and pods, the image.",
    ),
    Signature(
        name="file not found",
        pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^']*[/.][^']*)'",
        may_be_harmless=True,
        cause="The file {1} does not exist where the rank runs. Relative paths start in the folder where you called "
        "orch on this machine, and in the run's copy of the project everywhere else.",
        hint="`orch sync INVENTORY --data FOLDER` copies files to all nodes. Give the script their absolute path "
        "there. If git ignores the file, a line such as !data/*.bin in .orchignore sends it with the project.",
    ),
    # Consequences of a failure elsewhere, which are shown last.
    Signature(
        name="the other rank went away",
        pattern=r"DistNetworkError: Failed to recv, got 0 bytes"
        r"|Read error \[.*Connection reset by peer|Connection closed by peer \[|ncclRemoteError",
        cause="Another rank ended while this one waited for it. The reason is in its log.",
        hint="Read the log of the first rank that failed.",
    ),
    Signature(
        name="gloo at exit",
        pattern=r"terminate called without an active exception",
        cause="The process ended without destroy_process_group, so gloo's threads were still running.",
        hint="Call torch.distributed.destroy_process_group() at the end, after `del` of the DistributedDataParallel "
        "object.",
    ),
)
