"""Stacks: versions that fit together, and where their wheels come from."""
