"""Test the bindings on the torches of Debian, in containers."""
