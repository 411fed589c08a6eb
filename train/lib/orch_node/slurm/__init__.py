"""What a job of Slurm runs on its nodes."""
