"""`orch train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import RUNS_DIR, AsJson, RecipePath, RunsDir

JOBS = ("pytorchjob", "mpijob", "trainjob")
STARTERS = ("mpirun", "torchrun", "accelerate", "mpirun-accelerate")  # LAUNCHERS, not imported here


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE_OR_SCRIPT",
            help="A recipe (`orch recipes` lists them) or a script.",
            autocompletion=lambda incomplete: complete_recipes(incomplete),
        ),
    ],
    script_args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SCRIPT ARGS]", help="Arguments that go to the script as they are."
        ),
    ] = None,
    inventory: Annotated[str, typer.Option(help="Path or name of an Ansible inventory.")] = "local",
    on: Annotated[
        str | None, typer.Option(metavar="k8s", help="Run it as pods of a Kubernetes cluster.")
    ] = None,
    k8s: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A setting of the pods, such as image, cpu, memory; may be repeated.",
        ),
    ] = None,
    k8s_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ORCH_K8S_FILE", help="Such settings as TOML; default: orch-k8s.toml here."
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|PATTERN",
            help="How many nodes (the first ones), or which: node[1-3],node7, a group, any "
            "pattern of Ansible's; default: all.",
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Nodes to leave out, written as with --nodes."),
    ] = None,
    ppn: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Ranks on each node; auto: one for each of its NUMA nodes.",
        ),
    ] = "auto",
    stack: Annotated[
        str,
        typer.Option(
            help="The set of versions to run on.",
            autocompletion=lambda incomplete: complete_stacks(incomplete),
        ),
    ] = "current",
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"What starts the ranks: {', '.join(STARTERS)}; on k8s {', '.join(JOBS)}. "
            "The default is the first of them.",
        ),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            metavar="FLAVOUR",
            help="intel, mpich or openmpi; default: orch_mpi of the inventory, else the stack's.",
        ),
    ] = None,
    accelerate_config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your configuration of accelerate: honoured or, aloud, contradicted.",
        ),
    ] = None,
    docker_image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Run the ranks in a container of this image on each node."
        ),
    ] = None,
    docker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A setting of these containers, such as shm, memlock, mounts, env_file, python; "
            "may be repeated. The inventory's orch_docker has them for all runs.",
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Process-group backend; default: the stack's first.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 or fp32.")] = None,
    allow_slow_bf16: Annotated[
        bool,
        typer.Option(
            "--allow-slow-bf16", help="BF16 also where the CPU has no instructions for it."
        ),
    ] = False,
    ccl_workers: Annotated[
        int, typer.Option(help="Cores of each rank that oneCCL keeps for communication.")
    ] = 0,
    ipex: Annotated[
        bool, typer.Option("--ipex", help="Use Intel's extension, on stacks that have it.")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="A named set of the recipe's settings.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the recipe; may be repeated."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of carrying on an unfinished run.")
    ] = False,
    stall_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="End a run that has made no progress for so long (no event, collective, "
            "optimizer step or line of a log); 0: never.",
        ),
    ] = 900.0,
    max_restarts: Annotated[
        int,
        typer.Option(
            metavar="N", help="Start again so often after a failure, from the newest checkpoint."
        ),
    ] = 0,
    spare_nodes: Annotated[
        int,
        typer.Option(
            metavar="K",
            help="Keep K more nodes ready (the next of the inventory, or the last ones of those "
            "named by --nodes): a restart puts them in the place of nodes that were lost.",
        ),
    ] = 0,
    min_nodes: Annotated[
        int,
        typer.Option(
            metavar="K",
            help="Restart with as few as K nodes when others are lost, also a script that is no "
            "recipe; torchrun is started with --nnodes K:N.",
        ),
    ] = 0,
    queue: Annotated[
        bool, typer.Option("--queue", help="Wait for cores that another run has.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--detach", help="Watch it until it ends, or leave it running.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, as a shell script.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", metavar="yaml|json", help="With --dry-run: the manifest, or JSON."),
    ] = None,
    recipe_path: RecipePath = None,
    runs_dir: RunsDir = RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Train a recipe, or any script of your own, on the ranks of a cluster."""
    from orchestrator.cli.running import show_or_run
    from orchestrator.operations import train as operation
    from orchestrator.train_request import TrainRequest

    as_json = as_json or output == "json"

    request = TrainRequest(
        recipe=recipe,
        inventory=inventory,
        nodes=nodes,
        exclude=exclude,
        ppn=number_or_auto(ppn),
        stack=stack,
        launcher=launcher or STARTERS[0],
        mpi=mpi,
        backend=backend,
        precision=precision,
        allow_slow_bf16=allow_slow_bf16,
        ccl_workers=ccl_workers,
        ipex=ipex,
        preset=preset,
        settings={},
        script_args=tuple(script_args or ()),
        fresh=fresh,
        stall_timeout=stall_timeout,
        max_restarts=max_restarts,
        spare_nodes=spare_nodes,
        min_nodes=min_nodes,
        queue=queue,
    )
    pairs = tuple(settings or ())
    if on_cluster(on, launcher=launcher, given=(k8s, k8s_file), output=output):
        check_no_docker(docker_image, docker)
        from orchestrator.operations.kube import train as kube

        asked = kube.KubeAsked(
            request=request, launcher=launcher, pairs=pairs, k8s_file=k8s_file,
            k8s=tuple(k8s or ()), runs_dir=runs_dir,
        )  # fmt: skip
        show_or_run(
            kube.plan(asked), runs_dir, kube.start, dry_run=dry_run, as_json=as_json, wait=wait
        )
        return
    here = operation.Asked(
        request=request,
        pairs=pairs,
        runs_dir=runs_dir,
        accelerate_config=accelerate_config,
        docker_image=docker_image,
        docker=tuple(docker or ()),
        recipe_path=tuple(recipe_path or ()),
    )
    show_or_run(
        operation.plan(here), runs_dir, operation.start, dry_run=dry_run, as_json=as_json, wait=wait
    )


def on_cluster(
    on: str | None, *, launcher: str | None, given: tuple[object, ...], output: str | None
) -> bool:
    """Whether it is for Kubernetes. Raises RequestError for flags that then make no sense."""
    from orchestrator.errors import RequestError

    if on not in (None, "k8s"):
        raise RequestError(f"--on {on}: orch runs on k8s, or on the nodes of --inventory.")
    if output not in (None, "yaml", "json"):
        raise RequestError(f"-o {output}: it is yaml or json.")
    if on is None and (launcher in JOBS or any(given) or output == "yaml"):
        raise RequestError(f"{', '.join(JOBS)}, --k8s, --k8s-file and -o yaml are for --on k8s.")
    return on == "k8s"


def check_no_docker(*given: object) -> None:
    """Raises RequestError: pods are containers already."""
    from orchestrator.errors import RequestError

    if any(given):
        raise RequestError(
            "--docker-image and --docker are for nodes; pods have an image already.",
            hint="--k8s image=NAME",
        )


def number_or_auto(ppn: str) -> int | None:
    from orchestrator.errors import RequestError

    if ppn == "auto":
        return None
    try:
        return int(ppn)
    except ValueError:
        raise RequestError(f"--ppn {ppn}: expected a number or auto.") from None


def complete_recipes(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.recipe_folders() if name.startswith(incomplete)]


def complete_stacks(incomplete: str) -> list[str]:
    from orchestrator import load

    return [name for name in load.stack_names() if name.startswith(incomplete)]
