"""How a host is reached: this machine, and others behind SSH; and the copy here of a run there."""
