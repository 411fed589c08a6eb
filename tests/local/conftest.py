from __future__ import annotations

from tests.local.grounds import one, two

__all__ = ["one", "two"]
