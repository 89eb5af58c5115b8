"""Two Gaussian classes with DistributedDataParallel. Start one process a device, e.g. with torchrun."""

import torch
import torch.distributed as dist
from blobs import accuracy, blobs, net
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(*blobs(4096, seed=1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print(f"accuracy: {accuracy(model.module.eval()):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
