"""Train on this machine and on nodes that are reached through SSH."""
