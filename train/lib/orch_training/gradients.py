"""How DistributedDataParallel stores gradients."""

from __future__ import annotations

# Gradients are views of DDP's buckets. Otherwise DDP copies them to the buckets and back at every step.
IN_BUCKETS = {"gradient_as_bucket_view": True}
