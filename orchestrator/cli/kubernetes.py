"""`orch k8s check`, `init` and `role`, and the options of `orch train --on k8s`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.app import App
from orchestrator.cli.groups import Group
from orchestrator.cli.options import AsJson
from orchestrator.cli.train import TargetFlags
from orchestrator.screen import say
from orchestrator.targets.kubernetes.options import KubeOptions

if TYPE_CHECKING:
    from orchestrator.targets.kubernetes.findings import Finding

app = App(help="A Kubernetes cluster: is it ready, and what makes it so.")
Pairs = Annotated[list[str] | None, typer.Option("--k8s", metavar="KEY=VALUE", help="A setting, as with orch train.")]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--k8s-file", envvar="ORCH_K8S_FILE", metavar="FILE", help="Settings as TOML; default: orch-k8s.toml here."
    ),
]

TOKEN_FILE = "--token-file names a file with the token alone; - is standard input."
TRAIN = TargetFlags(
    on=KubeOptions.on,
    summary="k8s: as pods of a Kubernetes cluster.",
    launchers=("trainjob", "pytorchjob", "mpijob", "job"),  # KINDS, not imported here
    manifests=True,
    group=Group(
        kind=KubeOptions,
        panels={
            "Kubernetes": {
                "k8s": typer.Option(
                    metavar="KEY=VALUE", help="A setting of the pods, such as image, cpu, memory; may be repeated."
                ),
                "k8s_file": typer.Option(
                    envvar="ORCH_K8S_FILE", metavar="FILE", help="Such settings as TOML; default: orch-k8s.toml here."
                ),
                "k8s_patch": typer.Option(
                    metavar="FILE", help="Changes to the objects that are made, as JSON Patch (RFC 6902)."
                ),
                "wait_limit": typer.Option(
                    metavar="SECONDS",
                    min=1,
                    help="End the run if its ranks have not started by then, as when an image, a "
                    "claim, a node or quota never comes. Default: wait without a limit.",
                ),
            }
        },
    ),
)


@app.command()
def check(
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="trainjob, pytorchjob, mpijob or job; default: any.")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many pods a run will have.")] = 1,
    pull: Annotated[bool, typer.Option("--pull/--no-pull", help="Start a small pod with the image.")] = True,
    k8s: Pairs = None,
    k8s_file: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Look whether runs can start: what is missing, and its cure. Exit code 1 if there is any."""
    from orchestrator.errors import RequestError, did_you_mean
    from orchestrator.targets.kubernetes import check as cluster_check
    from orchestrator.targets.kubernetes.api.connect import connect
    from orchestrator.targets.kubernetes.load import kube_settings
    from orchestrator.targets.kubernetes.manifests.kinds import KINDS

    if launcher is not None and launcher not in KINDS:
        raise RequestError(f"--launcher {launcher}: unknown.", hint=did_you_mean(launcher, KINDS))
    settings = kube_settings(k8s_file, list(k8s or ()))
    request = cluster_check.CheckRequest(launcher=launcher, pods=nodes, pull=pull)
    found = []
    for finding in cluster_check.check(
        lambda: connect(settings.context, settings.namespace),
        settings,
        request,
        notify=lambda line: say(line, err=True),
    ):
        found.append(finding)
        if not as_json:
            say(finding.describe())
    if as_json:
        say(check_json(found))
    raise typer.Exit(int(any(one.state == "miss" for one in found)))


@app.command()
def init(
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token of the Hugging Face hub; - is standard input."),
    ] = None,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="A TrainingRuntime for TrainJobs of your own, too.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Make them, instead of printing them.")] = False,
    k8s: Pairs = None,
    k8s_file: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Render what a namespace needs once: the volume, the hub's token as a Secret."""
    from orchestrator.errors import RequestError
    from orchestrator.report.listing import SCHEMA
    from orchestrator.targets.kubernetes import init as namespace_objects
    from orchestrator.targets.kubernetes.api.connect import connect
    from orchestrator.targets.kubernetes.load import kube_settings

    if as_json and not apply:
        raise RequestError("--json is for --apply: the objects are printed as YAML.", hint="Leave --json out.")
    settings = kube_settings(k8s_file, list(k8s or ()))
    if runtime:
        settings.check()
    settings.check_names()
    objects = namespace_objects.init_objects(settings, read_token(token_file), runtime=runtime)
    if not apply:
        say(namespace_objects.as_printable_yaml(objects), nl=False, program=True)
        return
    made = namespace_objects.apply(connect(settings.context, settings.namespace), objects)
    value = {"schema": SCHEMA, "kind": "k8s init", "applied": made}
    say(json.dumps(value, indent=1) if as_json else "\n".join(made))


@app.command()
def role(
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only for this kind of job; default: for all kinds.")
    ] = None,
    k8s: Pairs = None,
    k8s_file: SettingsFile = None,
) -> None:
    """Print the Role with all rights that orch needs, also for `init` and Kueue, as YAML."""
    from orchestrator.errors import RequestError, did_you_mean
    from orchestrator.planning.manifest import as_yaml
    from orchestrator.targets.kubernetes import rights
    from orchestrator.targets.kubernetes.load import kube_settings
    from orchestrator.targets.kubernetes.manifests.kinds import KINDS

    if launcher is not None and launcher not in KINDS:
        raise RequestError(f"--launcher {launcher}: unknown.", hint=did_you_mean(launcher, KINDS))
    settings = kube_settings(k8s_file, list(k8s or ()))
    settings.check_names()
    made = rights.role(settings, [launcher] if launcher else KINDS)
    say(as_yaml((made,)), nl=False, program=True)


def check_json(found: Iterable[Finding]) -> str:
    from orchestrator.report.listing import SCHEMA

    findings = [asdict(one) for one in found]
    ready = not any(one["state"] == "miss" for one in findings)
    value = {"schema": SCHEMA, "kind": "k8s check", "ready": ready, "findings": findings}
    return json.dumps(value, indent=1)


def read_token(path: Path | None) -> str | None:
    """Never an argument: every user of a machine can read those."""
    import sys

    from orchestrator.errors import RequestError

    if path is None:
        return None
    try:
        token = (sys.stdin.read() if str(path) == "-" else path.read_text()).strip()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.", hint=TOKEN_FILE) from None
    if not token or any(letter.isspace() for letter in token):
        raise RequestError(f"{path} holds no token.", hint=TOKEN_FILE)
    return token
