"""Programs that a job of a batch system runs on its nodes."""
