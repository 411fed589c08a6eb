"""Check which fabrics carry traffic between the nodes, with the stack itself."""
