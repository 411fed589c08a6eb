"""Runs as objects of a Kubernetes cluster: what they are called, what they hold, what they say.

Pure: only orchestrator/backends/kube.py speaks to a cluster.
"""
