"""Debian's builds of torch, in containers, with our bindings built for each of them.

`python -m tests.torches` runs the whole suite on all of them, and writes the table of docs/reference/ccl.md.
"""
