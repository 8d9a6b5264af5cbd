"""The Muon optimizer."""

from typing import Any

import torch

from ddpjob_recipes.muon import Muon, orthogonalised
from support.devices import on_each_device


def test_an_update_keeps_its_singular_vectors_and_has_singular_values_near_one():
    generator = torch.Generator().manual_seed(0)
    shapes = ((32, 8, 3, 3), (32, 8, 3, 3), (8, 2, 1, 1))
    updates = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    done = orthogonalised(updates)
    assert [update.shape for update in done] == [update.shape for update in updates]
    for before, after in zip(updates, done, strict=True):
        left, values, right = torch.linalg.svd(before.flatten(1), full_matrices=False)
        seen = left.T @ after.flatten(1) @ right.T
        # Exact but for rounding, which is below 1e-14 in float64 whatever the order of sums.
        assert (seen - torch.diag(seen.diag())).abs().max() < 1e-10
        large = values > 0.2 * values.max()
        assert ((seen.diag()[large] > 0.5) & (seen.diag()[large] < 1.5)).all(), (
            "0.68 to 1.13: a property of the quintic"
        )


def test_a_batch_of_filters_is_treated_as_each_of_them_alone():
    # float64: kernels for batches add in another order than those for one matrix, and each round amplifies the difference.
    generators = [torch.Generator().manual_seed(number) for number in range(3)]
    updates = [torch.randn(16, 4, 3, 3, generator=generator, dtype=torch.float64) for generator in generators]
    for together, update in zip(orthogonalised(updates), updates, strict=True):
        torch.testing.assert_close(together, orthogonalised([update])[0])


def test_other_groups_are_trained_by_nesterov_sgd_as_torch_has_it():
    ours, reference = (torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(2))
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.85, "weight_decay": 0.01}
    muon = Muon([{"params": [ours], **settings}])
    sgd = torch.optim.SGD([reference], nesterov=True, **settings)
    for step in range(5):
        for parameter, optimizer in ((ours, muon), (reference, sgd)):
            parameter.grad = torch.full((3, 4), 0.5 + step) * parameter.detach()
            optimizer.step()
    torch.testing.assert_close(ours, reference)


def test_a_filter_is_brought_to_norm_and_moved_by_the_learning_rate():
    filters = torch.nn.Parameter(torch.randn(16, 4, 3, 3, generator=torch.Generator().manual_seed(0)))
    filters.grad = torch.randn(16, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    start = filters.detach() * 4 / filters.detach().norm()
    Muon([{"params": [filters], "orthogonal": True, "lr": 0.25, "momentum": 0.6}]).step()
    torch.testing.assert_close(filters.detach(), start - 0.25 * orthogonalised([filters.grad])[0])


@on_each_device
def test_its_state_is_complete(device):
    """Three steps in one go, or two, a round trip through state_dict, and one: the same bits."""

    def trained(save_after: int) -> torch.Tensor:
        filters = torch.nn.Parameter((torch.ones(4, 2, 3, 3) * torch.arange(4.0).view(4, 1, 1, 1)).to(device))
        bias = torch.nn.Parameter(torch.arange(4.0, device=device))

        def optimizer() -> Muon:
            return Muon(
                [
                    {"params": [filters], "orthogonal": True, "lr": 0.2, "momentum": 0.6},
                    {"params": [bias], "lr": 0.1, "momentum": 0.85, "weight_decay": 0.01},
                ]
            )

        muon = optimizer()
        more = torch.arange(18.0, device=device).view(1, 2, 3, 3)
        for step in range(3):
            if step == save_after:
                state = muon.state_dict()
                muon = optimizer()
                muon.load_state_dict(state)
            filters.grad, bias.grad = filters.detach() + more, bias.detach() + step
            muon.step()
        return torch.cat([filters.detach().flatten(), bias.detach()])

    assert torch.equal(trained(save_after=2), trained(save_after=-1))
