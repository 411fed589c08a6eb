"""Which settings of a user's accelerate configuration orch applies, and which it overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError
from orchestrator.launchers.job import Job
from orchestrator.model.decision import Decision
from orchestrator.model.hostlist import NodeCount

CPU_TYPES = ("MULTI_CPU", "NO")
# Ways to distribute a model that accelerate supports only on GPUs.
GPU_OPTIONS = (
    "deepspeed_config",
    "fsdp_config",
    "megatron_lm_config",
    "parallelism_config",
    "fp8_config",
    "tpu_name",
    "tpu_use_cluster",
)
PRECISIONS = {"no": "fp32", "bf16": "bf16"}
ACCELERATE_LAUNCHERS = ("accelerate", "mpirun-accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateOptions:
    """The settings of a configuration file as options of orch; None where the file has no value."""

    source: str
    values: Mapping[str, object] = field(default_factory=dict)
    nodes: NodeCount | None = None
    ppn: int | None = None
    precision: str | None = None
    port: int | None = None


def parse_options(values: Mapping[str, object], source: str) -> AccelerateOptions:
    """Return the options in a configuration of accelerate.

    Raises:
        PlanError: if it cannot be trained with on CPUs.
    """
    kind = str(values.get("distributed_type", "NO"))
    gpu_options = [name for name in GPU_OPTIONS if values.get(name)]
    if kind not in CPU_TYPES or values.get("use_cpu") is False or gpu_options:
        reason = gpu_options[0] if gpu_options else f"distributed_type {kind}, use_cpu {values.get('use_cpu')}"
        raise PlanError(
            f"{source} is for GPUs ({reason}); orch trains on CPUs.",
            hint="Create a configuration for multi-CPU with `accelerate config`.",
        )
    precision = str(values.get("mixed_precision") or "no")
    if precision not in PRECISIONS:
        raise PlanError(f"{source}: mixed_precision {precision} is not available on CPUs.", hint="Use bf16 or no.")
    ranks, machines = integer(values, "num_processes"), integer(values, "num_machines")
    even = ranks is not None and ranks > 0 and ranks % (machines or 1) == 0
    return AccelerateOptions(
        source=source,
        values=values,
        nodes=NodeCount(machines) if machines else None,
        ppn=ranks // (machines or 1) if even and ranks else None,
        precision=PRECISIONS[precision],
        port=integer(values, "main_process_port"),
    )


def integer(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def explain_options(options: AccelerateOptions, job: Job) -> tuple[Decision, ...]:
    """Return one decision for the settings that the plan applies, and one for each that it overrides."""
    reasons = dict(override_reasons(options.values, job))
    names = [f"{name} {options.values[name]}" for name, reason in reasons.items() if not reason]
    applied = Decision(
        topic="accelerate config", value=f"honoured: {', '.join(names) or 'nothing'}", reason=options.source
    )
    overridden = (
        Decision(topic="accelerate config", value=f"CONTRADICTED: {name} {options.values[name]}", reason=reason)
        for name, reason in reasons.items()
        if reason
    )
    return (applied, *overridden)


def override_reasons(values: Mapping[str, object], job: Job) -> Iterator[tuple[str, str]]:
    """Yield each setting with a value, and why the plan overrides it; empty if it does not."""
    planned: dict[str, tuple[object, str]] = {
        "num_processes": (job.layout.world_size, "ranks, from --ppn and the nodes' cores"),
        "num_machines": (len(job.nodes), "nodes, from --nodes and the inventory"),
        "mixed_precision": ("bf16" if job.precision == "bf16" else "no", "from --precision or the recipe"),
        "main_process_ip": (job.address, "node0's address on the nodes' network"),
        "main_process_port": (job.port, "the run's port"),
    }
    for name, value in values.items():
        if value in (None, "", {}) or name == "compute_environment":
            continue
        if name == "mpirun_config":
            yield name, "orch writes the hostfile itself, from the inventory"
        elif name == "ipex_config":
            uses_ipex = isinstance(value, Mapping) and bool(value.get("ipex"))
            yield name, "" if uses_ipex == job.ipex else f"ipex {job.ipex}: --ipex decides"
        elif name in planned and planned[name][0] != value:
            yield name, f"{planned[name][0]}: {planned[name][1]}"
        elif name == "machine_rank" and value != 0:
            yield name, "0: orch starts all nodes from node0"
        else:
            yield name, ""
