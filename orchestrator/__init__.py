"""orch turns Linux hosts into a CPU training cluster and trains on it."""

import sys

from orchestrator.paths import LIB

# orch_node.protocol, which nodes and controller share, lies among what travels to the nodes. Last,
# so that nothing of another's is hidden by it.
if str(LIB) not in sys.path:
    sys.path.append(str(LIB))
