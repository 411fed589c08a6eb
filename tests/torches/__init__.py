"""Test the bindings on other torches: those of Debian, in containers, and those of environments on this machine."""
