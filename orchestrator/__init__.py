"""orch turns Linux hosts into a CPU training cluster and trains on it."""
