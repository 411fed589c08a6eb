"""Load a quantized model in a separate process: verify_loading.py PACKAGE INPUTS OUTPUT."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "lib"))  # for orch_training

import torch
from int8 import Quantized

package, inputs_file, output_file = map(Path, sys.argv[1:])
inputs = torch.load(inputs_file, weights_only=True)
output = Quantized(package, list(inputs))(**inputs)
torch.save({"start": output.start_logits, "end": output.end_logits}, output_file)
