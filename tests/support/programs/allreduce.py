"""The sum over all ranks of rank + 1, printed by each of them."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([rank + 1])
dist.all_reduce(total)
# One write for the whole line: unbuffered `print` makes two, and the ranks of a pod share its output.
sys.stdout.write(f"rank {rank} of {world_size}: sum {total.item()}\n")
dist.destroy_process_group()
