"""Lightning determines rank and world size from the environment, and each rank prints them."""

import os
import sys

import torch
import torch.distributed as dist
from lightning_fabric import Fabric

fabric = Fabric(
    accelerator="cpu", devices=int(os.environ["NPROC_PER_NODE"]), num_nodes=int(os.environ["NNODES"]), strategy="ddp"
)
fabric.launch()
ranks = fabric.all_gather(torch.tensor(fabric.global_rank)).tolist()  # type: ignore[union-attr]
described = f"rank {fabric.global_rank} of {ranks}, node {fabric.node_rank}, local rank {fabric.local_rank}"
environment = fabric.strategy.cluster_environment  # type: ignore[attr-defined]
sys.stdout.write(f"{type(environment).__name__}: {described}\n")
# Threads of a process group that still exists can end the interpreter by SIGABRT (seen in one run of CI).
dist.destroy_process_group()
