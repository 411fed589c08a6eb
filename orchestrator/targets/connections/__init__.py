"""Connect to hosts, this machine or others through SSH, and copy the files of their runs."""
