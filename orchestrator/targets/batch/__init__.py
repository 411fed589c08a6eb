"""Train on the nodes that a batch system such as Slurm allocates."""
