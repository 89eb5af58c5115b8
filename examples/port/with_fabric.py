"""Two Gaussian classes with Lightning Fabric."""

import torch
from blobs import accuracy, blobs, net
from lightning_fabric import Fabric
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    fabric = Fabric(accelerator="auto", devices="auto")
    fabric.launch()
    torch.manual_seed(0)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(*blobs(4096, seed=1)), batch_size=32, shuffle=True))
    model = net()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for _ in range(2):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
    if fabric.is_global_zero:
        print(f"accuracy: {accuracy(model.module.eval()):.4f}")


if __name__ == "__main__":
    main()
