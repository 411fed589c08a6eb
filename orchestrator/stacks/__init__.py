"""Stacks as data, what fits what, and where wheels come from."""
