"""The objects that a run is made of."""
