"""Names of files on nodes."""

# In the run's folder.
LAYOUT = "layout.json"
ENVIRONMENT = "env.json"
CONTAINER = "container.json"
RECORD = "run.json"
HOSTFILE = "hostfile"
SUPERVISOR = "supervisor.json"
EVENTS = "events.jsonl"
LAUNCHER_LOG = "launcher.log"
OUTCOME = "outcome.json"
STOP = "stop"  # it was asked to stop
RANKS = "ranks"
STACK_TRACES = "stacks"

# Beside train/, by `orch provision`: variables of the cluster, and secrets.
PROVISIONED = ("env.json", "secrets.json")


def rank_log(rank: int) -> str:
    return f"{RANKS}/rank-{rank}.log"


def rank_metrics(rank: int) -> str:
    return f"{RANKS}/rank-{rank}.metrics.jsonl"
