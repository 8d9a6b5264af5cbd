"""The process group: devices, rendezvous, and what ranks exchange outside of training.

Two groups: the default one moves gradients (nccl on GPUs, gloo on CPUs); the control group is always gloo, so that a
flag or a file can travel without a GPU synchronisation.
"""
