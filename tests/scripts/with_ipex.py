"""Train in BF16 with ipex.optimize and orch's training check: with_ipex.py OPTIMIZER DEVICE.

The model is moved to DEVICE after ipex.optimize. The script needs the environment of a stack with IPEX.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "train" / "lib"))

import intel_extension_for_pytorch as ipex
import torch
from orch_node.rank import training_check


def main(kind: str, device: str) -> None:
    training_check.begin(torch)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 64), torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
    ).train()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16, inplace=True)
    model = model.to(device)
    inputs, labels = torch.randint(0, 50, (128,)), torch.randint(0, 4, (128,))
    losses = []
    for _ in range(8):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores.float(), labels)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("LOSSES", json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
