"""`orch k8s check`, `orch k8s init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import AsJson

app = typer.Typer(help="A Kubernetes cluster: is it ready, and what makes it so.")
Pairs = Annotated[
    list[str] | None,
    typer.Option("--k8s", metavar="KEY=VALUE", help="A setting, as with orch train."),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--k8s-file", envvar="ORCH_K8S_FILE", help="Settings as TOML; default: orch-k8s.toml here."
    ),
]


@app.command()
def check(
    launcher: Annotated[
        str | None, typer.Option(help="pytorchjob, mpijob or trainjob; default: any.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="How many pods a run will have.")] = 1,
    pull: Annotated[
        bool, typer.Option("--pull/--no-pull", help="Start a small pod with the image.")
    ] = True,
    k8s: Pairs = None,
    k8s_file: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Look whether runs can start: each miss with its cure; exit code 1 if there is one."""
    from orchestrator.backends.kube_connect import connect
    from orchestrator.errors import RequestError, did_you_mean
    from orchestrator.launchers.kubernetes_jobs import KINDS
    from orchestrator.load.kube import kube_settings
    from orchestrator.operations import k8s as operation
    from orchestrator.report import k8s as report

    if launcher is not None and launcher not in KINDS:
        raise RequestError(f"--launcher {launcher}: unknown.", hint=did_you_mean(launcher, KINDS))
    settings = kube_settings(k8s_file, list(k8s or ()))
    request = operation.CheckRequest(launcher=launcher, pods=nodes, pull=pull)
    found = []
    for finding in operation.check(
        lambda: connect(settings.context, settings.namespace), settings, request
    ):
        found.append(finding)
        if not as_json:
            typer.echo(report.text(finding))
    if as_json:
        typer.echo(report.as_json(found))
    raise typer.Exit(int(any(one.state == "miss" for one in found)))


@app.command()
def init(
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token of the Hugging Face hub; - is standard input."),
    ] = None,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="A TrainingRuntime for TrainJobs of your own, too.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make them, instead of printing them.")
    ] = False,
    k8s: Pairs = None,
    k8s_file: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Render what a namespace needs once: the volume, the hub's token as a Secret."""
    from orchestrator.backends.kube_connect import connect
    from orchestrator.load.kube import kube_settings
    from orchestrator.operations import k8s as operation
    from orchestrator.report.listing import SCHEMA

    settings = kube_settings(k8s_file, list(k8s or ()))
    if runtime:
        settings.check()
    settings.check_names()
    objects = operation.init_objects(settings, read_token(token_file), runtime=runtime)
    if not apply:
        typer.echo(operation.shown(objects), nl=False)
        return
    made = operation.apply(connect(settings.context, settings.namespace), objects)
    value = {"schema": SCHEMA, "kind": "k8s init", "applied": made}
    typer.echo(json.dumps(value, indent=1) if as_json else "\n".join(made))


def read_token(path: Path | None) -> str | None:
    """Never an argument: every user of a machine can read those."""
    import sys

    from orchestrator.errors import RequestError

    if path is None:
        return None
    try:
        token = (sys.stdin.read() if str(path) == "-" else path.read_text()).strip()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.") from None
    if not token or any(letter.isspace() for letter in token):
        raise RequestError(f"{path} holds no token.")
    return token
