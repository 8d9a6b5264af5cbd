"""Rank 0 writes to a file, then the other ranks append to it, as libraries do that prepare data on the main process."""

import sys
from pathlib import Path

import torch.distributed as dist

SHARED = Path("shared.txt")

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank != 0:
    dist.barrier()
with SHARED.open("a") as file:
    file.write(f"rank {rank}\n")
if rank == 0:
    dist.barrier()
dist.barrier()
ranks: list[object] = [None] * dist.get_world_size()
dist.all_gather_object(ranks, rank)
sys.stdout.write(f"rank {rank} of {ranks} reads {SHARED.read_text().splitlines()}\n")
dist.destroy_process_group()
