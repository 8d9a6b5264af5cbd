"""Handwritten digits with a session, shaped like the MNIST example of PyTorch: DataLoader, DistributedSampler, epochs."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddpjob.session import Session

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
arguments = parser.parse_args()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Of a model in evaluation mode."""
    model.eval()
    correct = (model(images).argmax(dim=1) == labels).float().mean()
    model.train()
    return float(correct)


with Session(settings=vars(arguments)) as session:
    torch.manual_seed(session.rank)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    train, held_out = TensorDataset(images[:1500], labels[:1500]), (images[1500:], labels[1500:])
    sampler = DistributedSampler(train, session.world_size, session.rank)
    loader = DataLoader(train, arguments.batch_size, sampler=sampler)

    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(576, 10))
    model = session.replicate(net)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    session.track(model=model, optimizer=optimizer, scheduler=scheduler)
    coming = session.batches(loader)
    for step in session.steps(total=arguments.epochs * len(loader), checkpoint_every=20):
        x, y = (tensor.to(session.device) for tensor in next(coming))
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss)
        if (step + 1) % len(loader) == 0:
            scheduler.step()
            session.report(accuracy=100 * accuracy(net, *(tensor.to(session.device) for tensor in held_out)))
