"""Train on the hosts of the supported targets: SSH, Kubernetes and Slurm."""
