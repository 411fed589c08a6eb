"""orch turns Linux hosts into a CPU training cluster and trains on it."""

import sys
from pathlib import Path

# orch_node.protocol, which nodes and controller share, lies among what travels to the nodes: inside the package in a
# wheel, next to it in a checkout. Last, so that nothing of another's is hidden by it.
FOLDER = Path(__file__).resolve().parent
SHARE = FOLDER / "share" if (FOLDER / "share").is_dir() else FOLDER.parent
if (LIB := str(SHARE / "train" / "lib")) not in sys.path:
    sys.path.append(LIB)
