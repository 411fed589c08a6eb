"""Measure the dry run: for large clusters, first and with a cached inventory, and next to the import of typer."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import arguments, interleaved, report, seconds

REPOSITORY = Path(__file__).resolve().parent.parent
SIZES = (1, 1_000, 10_000)
PROGRAM = "from orchestrator.cli.main import main; main()"  # what the command `orch` is
TYPER_PROGRAM = "import typer\ndef main(n: int = 1) -> None: pass\ntyper.run(main)"
CORES = 64  # per node, with two NUMA nodes and two hardware threads per core


def main() -> None:
    repeats = arguments().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": str(REPOSITORY),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
        (folder / "script.py").write_text("print('never run')\n")
        orch = [sys.executable, "-c", PROGRAM, "train", "script.py", "--project", "none", "--dry-run"]
        first, repeated = {}, {}
        for size in SIZES:
            inventory = make_cluster(folder, size, environment)
            dry_run = functools.partial(seconds, [*orch, "--inventory", str(inventory)], cwd=folder, env=environment)
            first[f"{size} hosts, first time"] = [dry_run()]
            repeated[f"{size} hosts"] = dry_run
        some = [*orch, "--inventory", str(inventory), "--nodes", "host[100-199]"]
        repeated[f"100 of {SIZES[-1]} hosts"] = functools.partial(seconds, some, cwd=folder, env=environment)
        figures = interleaved(repeated, repeats)
        run = functools.partial(seconds, cwd=folder, env=environment)
        imports = {
            "import typer": functools.partial(run, [sys.executable, "-c", "import typer"]),
            "typer program with one option": functools.partial(run, [sys.executable, "-c", TYPER_PROGRAM]),
            "orch train bert-qa --dry-run": functools.partial(run, [*orch[:4], "bert-qa", "--dry-run"]),
        }
        starts = interleaved(imports, repeats)
    report("Dry run, inventory just written", "seconds", first, next(iter(first)))
    report("Dry run", "seconds", figures, next(iter(figures)))
    report("Dry run on this machine", "seconds", starts, next(iter(starts)))


def make_cluster(folder: Path, size: int, environment: dict[str, str]) -> Path:
    """Write an inventory, and a record of each host like that of `orch provision`; return the inventory."""
    inventory = folder / f"lab{size}.yml"
    inventory.write_text(f"all:\n  hosts:\n    host[0:{size - 1}]:\n")
    program = (
        "import sys; from pathlib import Path; from orchestrator.state import State; "
        "print(State.of(Path(sys.argv[1])).record('x').parent)"
    )
    command = [sys.executable, "-c", program, str(inventory)]
    process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    records = Path(process.stdout.strip())
    records.mkdir(parents=True)
    facts = local_facts()
    for index in range(size):
        (records / f"host{index}.json").write_text(json.dumps(record(facts, index)))
    return inventory


def local_facts() -> dict[str, object]:
    command = [sys.executable, str(REPOSITORY / "train/lib/orch_node/standalone/facts.py"), sys.prefix]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(process.stdout))


def record(facts: dict[str, object], index: int) -> dict[str, object]:
    address = f"10.{index // 65536}.{index // 256 % 256}.{index % 256}"
    cpus = [
        {"cpu": cpu, "core": cpu % CORES, "socket": 0, "numa": cpu % CORES // (CORES // 2)} for cpu in range(2 * CORES)
    ]
    return facts | {
        "hostname": f"host{index}",
        "cpus": cpus,
        "flags": ["avx2", "avx512f", "avx512bw", "avx512_bf16"],
        "interfaces": {"lo": ["127.0.0.1"], "eth0": [address], "docker0": ["172.17.0.1"]},
        "address": address,
        "interface": "eth0",
        "route": "eth0",
        "detours": {},
        "root": "/opt/orch",
        "stack": "current",
        "connection": {"host": address, "port": "", "user": "", "key": "", "arguments": ""},
    }


if __name__ == "__main__":
    main()
