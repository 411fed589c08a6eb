"""Pods of a Kubernetes cluster."""
