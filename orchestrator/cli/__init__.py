"""The command line."""

import gc

# A collection while modules are imported takes 20 ms and frees nothing; a plan for thousands of nodes stays, too.
gc.set_threshold(200_000)
