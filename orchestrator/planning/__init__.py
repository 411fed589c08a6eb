"""Turns requests into plans: what all targets share."""
