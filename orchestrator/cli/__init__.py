"""The command line."""

import gc
import sys

# A collection while modules are imported takes 20 ms and frees nothing; a plan for thousands of nodes stays, too.
gc.set_threshold(200_000)


def run() -> None:
    """Run the program `orch`. Ctrl-C while its modules are imported, which takes half a second, ends it, too."""
    try:
        from orchestrator.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()
