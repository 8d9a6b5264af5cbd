"""The last rank raises in the middle of training; the others lose their connection to it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == dist.get_world_size() - 1:
    raise ValueError("label 12 is out of range for 10 classes")
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1))
