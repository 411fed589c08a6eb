"""What a pod runs."""
