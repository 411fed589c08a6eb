"""Access the API of a cluster."""
