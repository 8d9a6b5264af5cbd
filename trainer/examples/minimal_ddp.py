"""The smallest complete DDP script: fit y = 3x + 1, every rank on samples of its own. On GPUs or CPUs, alone too."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

on_gpu = torch.cuda.is_available()
gpu = 0 if torch.cuda.device_count() == 1 else int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device("cuda", gpu) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None, **alone)
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(1, 201):
    x = torch.rand(64, 1, device=device)
    loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 20 == 0:
        print(f'ddpjob-progress {{"step": {step}, "totalSteps": 200, "loss": {loss.item():.6f}}}', flush=True)

if rank == 0:
    weight, bias = (parameter.item() for parameter in model.parameters())
    print(f"{world_size} ranks found y = {weight:.2f}x + {bias:.2f}", flush=True)
dist.destroy_process_group()
