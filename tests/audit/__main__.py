"""`make audit`: pip-audit over the packages that orch runs on; bandit is part of `make lint`.

pip-audit alone ends well where no service answered, having audited nothing: that is a failure here.
reviewed.txt: package, vulnerability and why it does not matter here, line by line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    return tell(packages, reviewed())


def reviewed() -> set[tuple[str, str]]:
    lines = (line.partition("#")[0].split() for line in REVIEWED.read_text().splitlines())
    return {(words[0], words[1]) for words in lines if words}


def tell(packages: list[dict[str, object]], known: set[tuple[str, str]]) -> int:
    skipped = [str(one["name"]) for one in packages if "skip_reason" in one]
    found = [
        (str(one["name"]), str(vulnerability["id"]), str(vulnerability.get("fix_versions")))
        for one in packages
        for vulnerability in one.get("vulns", [])  # type: ignore[attr-defined]
    ]
    new = [(name, which, fixed) for name, which, fixed in found if (name, which) not in known]
    for name, which, fixed in new:
        print(f"audit: {name}: {which}, fixed in {fixed}")
    asked = len(packages) - len(skipped)
    print(f"audit: {asked} packages were looked up, {len(skipped)} are known to no service")
    if not asked:
        print("audit: no package was audited: no service answers here", file=sys.stderr)
    return 1 if new or not asked else 0


if __name__ == "__main__":
    raise SystemExit(main())
