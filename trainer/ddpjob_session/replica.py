"""A model on all ranks: DistributedDataParallel whose buckets do not change after the first step."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks.distributed import Gang


def replicate(model: nn.Module, gang: Gang, **options: Any) -> DistributedDataParallel:
    """The model in DDP: equal on all ranks from here on, with gradients averaged in buckets during the backward pass."""
    return DistributedDataParallel(model, device_ids=[gang.device] if gang.device.type == "cuda" else None, **options)


def settle_buckets(replica: DistributedDataParallel) -> str | None:
    """One backward pass through DDP, without the model, whose gradients are discarded.

    DDP plans its buckets again after its first backward pass, by the order in which gradients were ready, and another plan
    sums gradients in another order. With the final plan from the first step on, a resumed run has the same bits as one that
    was never interrupted. Here gradients are ready from the last parameter to the first, as in most models.

    Returns why that is not possible, if DDP is going to plan its buckets again.
    """
    parameters = [parameter for parameter in replica.module.parameters() if parameter.requires_grad]
    sparse = any(getattr(module, "sparse", False) for module in replica.module.modules())  # buckets of another kind
    if replica.find_unused_parameters or sparse or not parameters:
        return None
    if replica.static_graph:
        return "with static_graph=True DDP learns the order of gradients in the first step"
    if any(parameter._post_accumulate_grad_hooks for parameter in parameters):  # it may be an optimizer
        return "a hook of a parameter (register_post_accumulate_grad_hook) must not run before the first step"
    replica.reducer.prepare_for_backward([])
    # Gradients of 0, which the hooks of parameters may see.
    sums = [(torch.view_as_real(each) if each.is_complex() else each).sum() for each in parameters]
    torch.autograd.backward(sums, [torch.zeros_like(each) for each in sums])
    for parameter in parameters:
        parameter.grad = None
    return None
