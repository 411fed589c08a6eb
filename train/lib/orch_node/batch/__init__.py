"""Programs that a job of Slurm runs on its nodes."""
