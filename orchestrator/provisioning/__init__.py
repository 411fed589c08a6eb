"""From bare nodes to verified ones."""
