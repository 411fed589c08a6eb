"""The supervisor of a run, on node0."""
