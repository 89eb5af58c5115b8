"""Two Gaussian classes with Hugging Face Accelerate."""

import torch
from accelerate import Accelerator
from blobs import accuracy, blobs, net
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator()
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*blobs(4096, seed=1)), batch_size=32, shuffle=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    if accelerator.is_main_process:
        print(f"accuracy: {accuracy(accelerator.unwrap_model(model).eval()):.4f}")


if __name__ == "__main__":
    main()
