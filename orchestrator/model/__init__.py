"""Nouns without effects."""
