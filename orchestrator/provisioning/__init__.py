"""Provisioning: inspect bare nodes, install a stack on them, and verify the result."""
