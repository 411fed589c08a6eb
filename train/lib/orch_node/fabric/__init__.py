"""Which fabrics carry traffic between the nodes: tried by the stack itself."""
