"""Programs that are also sent as text: each needs nothing but the standard library."""
