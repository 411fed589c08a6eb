"""Train on the nodes that Slurm allocates."""
