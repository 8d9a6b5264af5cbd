"""Lightning finds its place in the process group from the environment, and each rank prints it."""

import os
import sys

from lightning_fabric import Fabric

fabric = Fabric(
    accelerator="cpu", devices=int(os.environ["NPROC_PER_NODE"]), num_nodes=int(os.environ["NNODES"]), strategy="ddp"
)
fabric.launch()
ranks = fabric.all_gather(fabric.global_rank).tolist()
place = f"rank {fabric.global_rank} of {ranks}, node {fabric.node_rank}, local rank {fabric.local_rank}"
sys.stdout.write(f"{type(fabric.strategy.cluster_environment).__name__}: {place}\n")
