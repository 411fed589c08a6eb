"""Talking to the API server."""
