"""Run pip-audit over orch's packages: `make audit`. (Security rules for the code are part of `make lint`.)

pip-audit succeeds even if no vulnerability service responds; that is a failure here.
"""

from __future__ import annotations

import json
import subprocess
import sys

# Vulnerabilities that do not matter here, with the reason behind each.
REVIEWED: tuple[str, ...] = ()


def main() -> int:
    ignored = [f"--ignore-vuln={vulnerability}" for vulnerability in REVIEWED]
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", *ignored]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    packages = json.loads(done.stdout)["dependencies"] if done.stdout else []
    audited = [package for package in packages if "skip_reason" not in package]
    for package in audited:
        for vulnerability in package["vulns"]:
            print(f"audit: {package['name']}: {vulnerability['id']}, fixed in {vulnerability['fix_versions']}")
    print(f"audit: {len(audited)} packages audited, {len(packages) - len(audited)} unknown to all services")
    return done.returncode if audited else 1


if __name__ == "__main__":
    raise SystemExit(main())
