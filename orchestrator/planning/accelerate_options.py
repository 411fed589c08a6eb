"""Which settings of a user's accelerate configuration orch applies, and which it overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.decision import Decision
from orchestrator.planning.launchers import LaunchSpec, mixed_precision

TYPES = ("MULTI_CPU", "MULTI_GPU", "NO")
PRECISIONS = {"no": "fp32", "bf16": "bf16"}
CPU_FILE = "Create one for multi-CPU by `accelerate config`, or set distributed_type: MULTI_CPU and use_cpu: true."


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateOptions:
    """The settings of a configuration file as options of orch; None where the file has no value.

    Attributes:
        for_gpus: what shows that the file is for GPUs, or ''.
    """

    source: str
    values: Mapping[str, object] = field(default_factory=dict)
    nodes: int | None = None
    ppn: int | None = None
    precision: str | None = None
    port: int | None = None
    for_gpus: str = ""


def parse_options(values: Mapping[str, object], source: str, names: Mapping[str, list[str]]) -> AccelerateOptions:
    """Return the options in a configuration of accelerate.

    Args:
        values: the configuration.
        source: the file.
        names: `fields` of accelerate's configuration, and those that are `unsupported`.

    Raises:
        PlanError: if orch cannot train with it.
    """
    if unknown_keys := sorted(values.keys() - set(names["fields"])):
        creates = "`accelerate config` creates a file with its keys."
        hint = did_you_mean(unknown_keys[0], names["fields"], listing=creates)
        raise PlanError(f"{source}: {unknown_keys[0]}: accelerate has no such key in its configuration.", hint=hint)
    kind = values.get("distributed_type", "NO")
    kind = "NO" if kind is False else str(kind)  # YAML reads NO without quotes as false
    other_options = [f"it has {name}" for name in names["unsupported"] if values.get(name)]
    distributed_type = f"its distributed_type is {kind}"
    if reasons := [*([distributed_type] if kind not in TYPES else []), *other_options]:
        raise PlanError.about("accelerate-config", source=source, reason=reasons[0], example=CPU_FILE)
    no_cpu = "its use_cpu is false" if values.get("use_cpu") is False else ""
    precision = str(values.get("mixed_precision") or "no").lower()
    if precision not in PRECISIONS:
        raise PlanError(f"{source}: orch has no mixed_precision {precision}.", hint="Use bf16 or no.")
    ranks, machines = integer(values, "num_processes"), integer(values, "num_machines")
    even = ranks is not None and ranks > 0 and ranks % (machines or 1) == 0
    return AccelerateOptions(
        source=source,
        values=values,
        nodes=machines or None,
        ppn=ranks // (machines or 1) if even and ranks else None,
        precision=PRECISIONS[precision],
        port=integer(values, "main_process_port"),
        for_gpus=distributed_type if kind == "MULTI_GPU" else no_cpu,
    )


def check_device(options: AccelerateOptions, spec: LaunchSpec) -> None:
    """Raise PlanError if a configuration is for GPUs and the ranks train on CPUs."""
    if options.for_gpus and not spec.on_gpus:
        raise PlanError.about("accelerate-gpus", options=options, example=CPU_FILE)


def integer(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def option_decisions(options: AccelerateOptions, spec: LaunchSpec) -> Iterator[Decision]:
    """Yield one decision for the settings that the plan applies, and one for each that it overrides."""
    texts = {f"{name} {options.values[name]}": reason for name, reason in override_reasons(options.values, spec)}
    applied = ", ".join(text for text, reason in texts.items() if not reason)
    yield Decision("accelerate config", f"honoured: {applied or 'nothing'}", options.source)
    for text, reason in texts.items():
        if reason:
            yield Decision("accelerate config", f"CONTRADICTED: {text}", reason)


def override_reasons(values: Mapping[str, object], spec: LaunchSpec) -> Iterator[tuple[str, str]]:
    """Yield each setting with a value, and why the plan overrides it; empty if it does not."""
    planned: dict[str, tuple[object, str]] = {
        "num_processes": (spec.layout.world_size, "ranks, from --ppn and the nodes' cores"),
        "num_machines": (len(spec.nodes), "nodes, from --nodes and the inventory"),
        "mixed_precision": (mixed_precision(spec), "from --precision or the recipe"),
        "main_process_ip": (spec.address, "node0's address on the nodes' network"),
        "main_process_port": (spec.port, "the run's port"),
        "use_cpu": (not spec.on_gpus, "from the backend and the GPUs of the nodes"),
    }
    for name, value in values.items():
        if value in (None, "", {}) or name == "compute_environment":
            continue
        if name == "mpirun_config":
            yield name, "orch writes the hostfile itself, from the inventory"
        elif name == "ipex_config":
            uses_ipex = isinstance(value, Mapping) and bool(value.get("ipex"))
            yield name, "" if uses_ipex == spec.ipex else f"ipex {spec.ipex}: --ipex decides"
        elif name in planned and planned[name][0] != value:
            yield name, f"{planned[name][0]}: {planned[name][1]}"
        elif name == "machine_rank" and value != 0:
            yield name, "0: orch starts all nodes from node0"
        else:
            yield name, ""
