"""Watches one run on node0."""
