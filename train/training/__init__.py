"""What the recipes share: ranks, checkpoints, metrics, models. A script puts train/ on its path."""
