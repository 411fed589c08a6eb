"""Around and inside the process of one rank."""
