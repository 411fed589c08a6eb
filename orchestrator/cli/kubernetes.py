"""The commands of `orch k8s`."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import App
from orchestrator.cli.options import AsJson
from orchestrator.errors import RequestError
from orchestrator.planning.launchers import check_launcher_name
from orchestrator.planning.plan import as_yaml
from orchestrator.report import listing as report
from orchestrator.report.listing import json_text
from orchestrator.screen import print_text
from orchestrator.targets import registry
from orchestrator.targets.entry import OPTION
from orchestrator.targets.interface import CheckRequest
from orchestrator.targets.kubernetes import namespace as namespace_objects
from orchestrator.targets.kubernetes.client import connect
from orchestrator.targets.kubernetes.inputs import kubernetes_settings
from orchestrator.targets.kubernetes.manifests import KINDS
from orchestrator.targets.kubernetes.options import KubernetesOptions

app = App(help="Check and prepare a Kubernetes cluster.")
DECLARED = {item.name: typer.Option(**item.metadata[OPTION]) for item in fields(KubernetesOptions)}
SettingOptions = Annotated[list[str] | None, DECLARED["k8s"]]
SettingsFile = Annotated[Path | None, DECLARED["k8s_file"]]
Image = Annotated[str | None, typer.Option("--image", metavar="NAME", help="Image of the pods.")]
TOKEN_FILE_HINT = "--token-file needs a file that contains only the token, or - for standard input."


@app.command()
def check(
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="trainjob, pytorchjob or job. Default: any.")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of pods of the run.")] = 1,
    image: Image = None,
    k8s: SettingOptions = None,
    k8s_file: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Check whether the cluster accepts runs, without creating anything. The exit code is 1 if anything is missing."""
    options = KubernetesOptions(k8s=tuple(k8s or ()), k8s_file=k8s_file)
    request = CheckRequest(options=(options,), nodes=nodes, launcher=launcher, image=image)
    findings = []
    for finding in registry.find_target(options.on).check(request):
        findings.append(finding)
        if not as_json:
            print_text("\n".join(report.finding_lines([finding])))
    if as_json:
        print_text(report.findings_json("k8s check", findings))
    raise typer.Exit(int(any(finding.severity == "miss" for finding in findings)))


@app.command()
def init(
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a Hugging Face Hub token; - reads standard input.")
    ] = None,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Also create a TrainingRuntime for your own TrainJobs.")
    ] = False,
    image: Image = None,
    apply: Annotated[bool, typer.Option("--apply", help="Create the objects instead of printing them.")] = False,
    k8s: SettingOptions = None,
    k8s_file: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the objects that a namespace needs once: the volume, and the Hub token as a Secret."""
    if as_json and not apply:
        raise RequestError.about("json-of-k8s-init")
    settings = kubernetes_settings(k8s_file, list(k8s or ()), image)
    if runtime:
        settings.check_image()
    objects = namespace_objects.init_objects(settings, read_token(token_file), runtime=runtime)
    if not apply:
        print_text(namespace_objects.as_printable_yaml(objects), nl=False, program=True)
        return
    applied = namespace_objects.apply(connect(settings.context, settings.namespace), objects)
    print_text(json_text("k8s init", applied=applied) if as_json else "\n".join(applied))


@app.command()
def role(
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only for this kind of job. Default: all kinds.")
    ] = None,
    k8s: SettingOptions = None,
    k8s_file: SettingsFile = None,
) -> None:
    """Print a Role with all permissions that orch needs, including those of `init`, as YAML."""
    if launcher is not None:
        check_launcher_name(launcher, KINDS, "Kubernetes")
    settings = kubernetes_settings(k8s_file, list(k8s or ()))
    role = namespace_objects.role(settings, [launcher] if launcher else KINDS)
    print_text(as_yaml((role,)), nl=False, program=True)


def read_token(path: Path | None) -> str | None:
    """Return the token in a file or on standard input, or None without a path.

    The token is not a command-line argument because all users of a machine can read those.

    Raises:
        RequestError: if the file cannot be read or does not contain exactly one token.
    """
    if path is None:
        return None
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise RequestError(f"Cannot read {path}: {error.strerror}.", hint=TOKEN_FILE_HINT) from None
    if not content.isascii() or len(content.split()) != 1:
        raise RequestError(f"{path} does not contain a token.", hint=TOKEN_FILE_HINT)
    return content.decode().strip()
