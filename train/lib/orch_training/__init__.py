"""Shared code of the recipes: ranks, checkpoints, metrics, models."""

import logging

# transformers imports torchao if it is installed. Both then warn about kernels of other devices and about torch's own
# registries, which a recipe's user cannot change.
for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).setLevel(logging.ERROR)
