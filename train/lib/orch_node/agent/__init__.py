"""orch's small process on each node of a run, and what looks at a node."""
