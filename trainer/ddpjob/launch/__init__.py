"""`python -m ddpjob.launch train.py`: starts the ranks of a node, one process each, in place of torchrun.

It forwards signals, ends with the exit code of the rank that failed first, and starts without torch. It restarts nothing,
since a DDPJob, Slurm or whoever starts it restarts all ranks of all nodes together.

    python -m ddpjob.launch train.py --epochs 3            # one process for each GPU, or one without GPUs
    python -m ddpjob.launch --nproc-per-node 2 -m my.train  # two processes that run a module
    python -m ddpjob.launch --nnodes 2 --node-rank 1 --master-addr host0 train.py  # on each of two hosts, without an operator

In the pods of a DDPJob it needs no options: it reads the variables that the operator sets.
"""

from ddpjob_ranks.launch.command import main

__all__ = ["main"]
