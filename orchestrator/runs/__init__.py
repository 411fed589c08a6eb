"""The recorded data of runs: records, files, events and outcomes."""
