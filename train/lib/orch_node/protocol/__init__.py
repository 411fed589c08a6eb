"""What the processes of a run, and the machine that started it, say to each other: typed values.

Pure: values in, values out. The files and lines keep their JSON form, so that runs of other
versions stay readable. The controller imports this package from train/lib, never the other way
round.
"""
