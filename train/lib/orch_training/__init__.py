"""What the recipes share: ranks, checkpoints, metrics, models. train/lib is on their path."""

import logging

# transformers imports torchao wherever it is installed, and both complain there about kernels for
# other devices and about torch's own registries: nothing that a user of a recipe could mend.
for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).setLevel(logging.ERROR)
