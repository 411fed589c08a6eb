"""Where gradients are while they travel."""

from __future__ import annotations

# For DistributedDataParallel: they are views of its buckets. Else it keeps both, and copies all of
# them to the buckets and back at every step.
IN_BUCKETS = {"gradient_as_bucket_view": True}
