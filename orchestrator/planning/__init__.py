"""Request -> plan: what all targets share."""
