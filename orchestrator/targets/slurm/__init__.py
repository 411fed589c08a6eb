"""A cluster whose hosts Slurm gives out."""
