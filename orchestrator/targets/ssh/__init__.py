"""This machine, and nodes behind SSH."""
