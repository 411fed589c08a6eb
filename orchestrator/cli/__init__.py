"""The command line."""

import gc

# Importing makes many objects that live until the end, and so does a plan for thousands of nodes.
gc.set_threshold(50_000)
