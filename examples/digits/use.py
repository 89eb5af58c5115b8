"""Uses the trained model without fdl: plain torch loads the exported file and names the held-out digits.

python use.py model.pt
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

state = torch.load(sys.argv[1], weights_only=True)
width = len(state["0.bias"])
model = nn.Sequential(
    nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
    nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(2 * width * 16, 10),
)  # fmt: skip
model.load_state_dict(state)
data = np.load(Path(__file__).with_name("digits.npz"))
images = torch.from_numpy(data["images"]).unsqueeze(1).float()[::6] / 16
with torch.no_grad():
    guesses = model(images).argmax(1).numpy()
print(f"accuracy {(guesses == data['labels'][::6]).mean():.4f}")
