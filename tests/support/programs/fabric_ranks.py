"""Lightning determines rank and world size from the environment, and each rank prints them."""

import os
import sys

import torch.distributed as dist
from lightning_fabric import Fabric

fabric = Fabric(
    accelerator="cpu", devices=int(os.environ["NPROC_PER_NODE"]), num_nodes=int(os.environ["NNODES"]), strategy="ddp"
)
fabric.launch()
ranks = fabric.all_gather(fabric.global_rank).tolist()
described = f"rank {fabric.global_rank} of {ranks}, node {fabric.node_rank}, local rank {fabric.local_rank}"
sys.stdout.write(f"{type(fabric.strategy.cluster_environment).__name__}: {described}\n")
# Threads of a process group that still exists can end the interpreter by SIGABRT (seen in one run of CI).
dist.destroy_process_group()
