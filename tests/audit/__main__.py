"""Run pip-audit over orch's packages: `make audit`. (bandit is part of `make lint`.)

pip-audit succeeds even if no vulnerability service responds; that is a failure here. reviewed.txt lists vulnerabilities
that do not matter here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REVIEWED = Path(__file__).parent / "reviewed.txt"


def main() -> int:
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"],
        capture_output=True,
        text=True,
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(f"audit: pip-audit failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return 1
    return report(packages, reviewed_vulnerabilities())


def reviewed_vulnerabilities() -> set[tuple[str, str]]:
    """Return (package, vulnerability) of each line of reviewed.txt."""
    lines = (line.partition("#")[0].split() for line in REVIEWED.read_text().splitlines())
    return {(fields[0], fields[1]) for fields in lines if fields}


def report(packages: list[dict[str, Any]], reviewed: set[tuple[str, str]]) -> int:
    """Print the vulnerabilities that were not reviewed, and return the exit code."""
    audited = [package for package in packages if "skip_reason" not in package]
    new = [
        f"{package['name']}: {vulnerability['id']}, fixed in {vulnerability.get('fix_versions')}"
        for package in audited
        for vulnerability in package.get("vulns", [])
        if (package["name"], vulnerability["id"]) not in reviewed
    ]
    for line in new:
        print(f"audit: {line}")
    print(f"audit: {len(audited)} packages audited, {len(packages) - len(audited)} unknown to all services")
    if not audited:
        print("audit: no package was audited, because no service responded", file=sys.stderr)
    return 1 if new or not audited else 0


if __name__ == "__main__":
    raise SystemExit(main())
