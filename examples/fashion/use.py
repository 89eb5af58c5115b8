"""Uses the trained model without fdl: plain torch loads the exported file and names the 10,000 test images.

python use.py model.pt
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

DATA = Path("/usr/share/datasets/fashion-mnist")

model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(48 * 7 * 7, 80), nn.ReLU(), nn.Linear(80, 10),
)  # fmt: skip
model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
images = np.frombuffer(gzip.decompress((DATA / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
labels = np.frombuffer(gzip.decompress((DATA / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
with torch.no_grad():
    parts = torch.tensor(images.reshape(-1, 1, 28, 28)).split(500)
    guesses = torch.cat([model(part.float() / 255).argmax(1) for part in parts])
print(f"accuracy {(guesses.numpy() == labels).mean():.4f}")
