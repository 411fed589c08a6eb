"""Runs on Kubernetes: what train, attach, stop, logs, fetch and runs do there."""
