"""Typed values that the processes of a run, and the controller that started it, exchange.

Nothing here has side effects. Files and lines keep their JSON form, so that runs of other versions
stay readable. The controller imports this package from train/lib, never the other way round.
"""
