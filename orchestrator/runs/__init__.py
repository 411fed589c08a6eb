"""What is known of a run: its record, files, events, outcome."""
