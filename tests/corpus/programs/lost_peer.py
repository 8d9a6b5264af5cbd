"""The last rank exits with code 0 while the others wait for it; what is left of them is the lost connection."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == dist.get_world_size() - 1:
    raise SystemExit(0)
dist.all_reduce(torch.ones(1))
