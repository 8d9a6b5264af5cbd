"""A program that saves to a relative path, as tutorials of torchrun do: local rank 0 of each node writes `snapshot.pt`.

In the job's first attempt the last rank fails at the start of epoch FAILING_EPOCH.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 4
FAILING_EPOCH = 2
SNAPSHOT = Path("snapshot.pt")

dist.init_process_group("gloo")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
model = torch.nn.Linear(1, 1)
first_epoch = 0
if SNAPSHOT.exists():
    snapshot = torch.load(SNAPSHOT, weights_only=True)
    model.load_state_dict(snapshot["model"])
    first_epoch = snapshot["epoch"] + 1
sys.stdout.write(f"rank {rank} starts at epoch {first_epoch}\n")

trained = DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for epoch in range(first_epoch, EPOCHS):
    if (epoch, rank, os.environ["DDPJOB_ATTEMPT"]) == (FAILING_EPOCH, dist.get_world_size() - 1, "1"):
        raise ValueError(f"failure in epoch {epoch}")
    optimizer.zero_grad()
    trained(torch.ones(4, 1)).mean().backward()
    optimizer.step()
    if local_rank == 0:
        unfinished = SNAPSHOT.with_suffix(f".{rank}")
        torch.save({"model": model.state_dict(), "epoch": epoch}, unfinished)
        unfinished.replace(SNAPSHOT)
    dist.barrier()
dist.destroy_process_group()
