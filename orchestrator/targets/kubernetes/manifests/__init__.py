"""Build the objects of a run."""
