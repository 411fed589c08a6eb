"""A user's configuration of accelerate: what of it is honoured, and what is contradicted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError
from orchestrator.launchers.job import Job
from orchestrator.model.decision import Decision

CPU_TYPES = ("MULTI_CPU", "NO")
# Other ways to spread a model, which accelerate has for GPUs alone.
ELSEWHERE = (
    "deepspeed_config",
    "fsdp_config",
    "megatron_lm_config",
    "parallelism_config",
    "fp8_config",
    "tpu_name",
    "tpu_use_cluster",
)
PRECISIONS = {"no": "fp32", "bf16": "bf16"}
WITH = ("accelerate", "mpirun-accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateOptions:
    """What a file asks for in orch's own words; None where it leaves that open."""

    source: str
    values: Mapping[str, object] = field(default_factory=dict)
    nodes: str | None = None
    ppn: int | None = None
    precision: str | None = None
    port: int | None = None


def parse_options(values: Mapping[str, object], source: str) -> AccelerateOptions:
    """Raises PlanError for what cannot be trained on CPUs."""
    kind = str(values.get("distributed_type", "NO"))
    other = [name for name in ELSEWHERE if values.get(name)]
    if kind not in CPU_TYPES or values.get("use_cpu") is False or other:
        what = other[0] if other else f"distributed_type {kind}, use_cpu {values.get('use_cpu')}"
        raise PlanError(
            f"{source} is for GPUs ({what}); orch trains on CPUs.", hint="Make one with `accelerate config`: multi-CPU."
        )
    precision = str(values.get("mixed_precision") or "no")
    if precision not in PRECISIONS:
        raise PlanError(f"{source}: mixed_precision {precision}, which CPUs do not train in.", hint="bf16 or no.")
    ranks, machines = number(values, "num_processes"), number(values, "num_machines")
    even = ranks is not None and ranks > 0 and ranks % (machines or 1) == 0
    return AccelerateOptions(
        source=source,
        values=values,
        nodes=str(machines) if machines else None,
        ppn=ranks // (machines or 1) if even and ranks else None,
        precision=PRECISIONS[precision],
        port=number(values, "main_process_port"),
    )


def number(values: Mapping[str, object], name: str) -> int | None:
    found = values.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def tell(options: AccelerateOptions, job: Job) -> tuple[Decision, ...]:
    """One decision for the values that the plan honours, one for each that it contradicts."""
    answers = dict(compare(options.values, job))
    kept = [f"{name} {options.values[name]}" for name, why in answers.items() if not why]
    honoured = Decision(
        topic="accelerate config", value=f"honoured: {', '.join(kept) or 'nothing'}", reason=options.source
    )
    contradicted = (
        Decision(topic="accelerate config", value=f"CONTRADICTED: {name} {options.values[name]}", reason=why)
        for name, why in answers.items()
        if why
    )
    return (honoured, *contradicted)


def compare(values: Mapping[str, object], job: Job) -> Iterator[tuple[str, str]]:
    """(name, why it is contradicted or nothing) of all values that say something."""
    ours: dict[str, tuple[object, str]] = {
        "num_processes": (job.layout.world_size, "ranks, by --ppn and the nodes' cores"),
        "num_machines": (len(job.nodes), "nodes, by --nodes and the inventory"),
        "mixed_precision": ("bf16" if job.precision == "bf16" else "no", "by --precision, or the recipe's"),
        "main_process_ip": (job.address, "node0's address on the nodes' own network"),
        "main_process_port": (job.port, "the run's port"),
    }
    for name, value in values.items():
        if value in (None, "", {}) or name == "compute_environment":
            continue
        if name == "mpirun_config":
            yield name, "orch writes the hostfile itself, from the inventory"
        elif name == "ipex_config":
            wants = isinstance(value, Mapping) and bool(value.get("ipex"))
            yield name, "" if wants == job.ipex else f"ipex {job.ipex}: --ipex decides"
        elif name in ours and ours[name][0] != value:
            yield name, f"{ours[name][0]}: {ours[name][1]}"
        elif name == "machine_rank" and value != 0:
            yield name, "0: orch starts all nodes from node0"
        else:
            yield name, ""
