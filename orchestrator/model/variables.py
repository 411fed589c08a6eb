"""Names of environment variables."""

from __future__ import annotations

import re

# Their values are in no argument, manifest, log or record.
SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.I)
