"""The network of the speedrun recipe."""

from typing import Any, cast

import torch

from ddpjob_recipes.speedrun import PREPARATION, Network, six_views, speedrun_cifar10, whiten
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import ImageData, Split

RECIPE = speedrun_cifar10


def pictures() -> ImageData:
    """Smooth ones, whose neighbouring pixels go together as those of photographs do."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(300, 3, 8, 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    noisy = 255 * (0.8 * smooth + 0.2 * torch.rand(300, 3, 32, 32, generator=generator))
    split = Split(images_NCHW=noisy.to(torch.uint8), labels_N=torch.arange(300) % 10, preparation=PREPARATION)
    return ImageData(train=split, test=split, num_classes=10)


def test_the_first_layer_takes_correlation_and_scale_out_of_patches():
    network, data = Network(10), pictures()
    whiten(network, data)
    with torch.no_grad():
        network.whitening.bias.zero_()
        seen = network.whitening(PREPARATION.normalise(cast("Split", data.train).images_NCHW))
    directions, opposites = seen.transpose(0, 1).flatten(1).split(12)
    covariance = directions @ directions.mT / directions.shape[1]
    # 0.0098: what WHITENING_EPSILON leaves of these images. Rounding adds 1e-6, whatever the processor.
    assert (covariance - torch.eye(12)).abs().max() < 0.05
    torch.testing.assert_close(opposites, -directions)


def test_the_first_layer_and_the_scales_of_norms_are_fixed():
    fixed = {name for name, parameter in Network(10).named_parameters() if not parameter.requires_grad}
    assert {name.partition(".")[0] for name in fixed} == {"whitening", "body"}
    assert "whitening.weight" in fixed
    assert all(name.endswith("weight") for name in fixed)


def test_a_convolution_starts_by_passing_its_channels_on():
    convolution = Network(10).body.get_submodule("1.0")
    images = torch.rand(2, 24, 5, 5)
    torch.testing.assert_close(convolution(images)[:, :24], images)


def test_evaluation_sees_an_image_and_its_mirror_image_each_in_place_and_moved_to_two_corners():
    """For a linear network: of one bright pixel, what the six views see at one place."""
    views = torch.nn.Flatten()
    images = torch.zeros(1, 1, 32, 32)
    images[0, 0, 10, 4] = 1.0
    seen = six_views(views, (images, None)).view(32, 32)
    expected = torch.zeros(32, 32)
    for weight, row, column in ((0.25, 10, 4), (0.125, 11, 5), (0.125, 9, 3)):
        expected[row, column] += weight
        expected[row, 31 - column] += weight
    torch.testing.assert_close(seen, expected)


def test_weights_shrink_by_the_weight_decay_at_the_peak_whatever_the_rate_of_their_group():
    for rate in (0.24, 0.05):
        config = recipes.resolve(
            parse_config({"recipe": "speedrun-cifar10", "learningRate": rate, "weightDecay": 0.004})
        )
        groups = RECIPE.optimizer(Network(10), config).param_groups
        shrinkage = [rate * group["lr_scale"] * group["weight_decay"] for group in groups if not group["orthogonal"]]
        torch.testing.assert_close(torch.tensor(shrinkage), torch.tensor(3 * [0.004]))


def test_a_run_that_resumes_with_another_rate_has_the_decay_of_that_rate():
    def optimizer(rate: float) -> torch.optim.Optimizer:
        config = recipes.resolve(
            parse_config({"recipe": "speedrun-cifar10", "learningRate": rate, "weightDecay": 0.004})
        )
        return RECIPE.optimizer(Network(10), config)

    resumed, fresh = optimizer(0.05), optimizer(0.05)
    resumed.load_state_dict(optimizer(0.24).state_dict())
    for group, expected in zip(resumed.param_groups, fresh.param_groups, strict=True):
        assert group["weight_decay"] == expected["weight_decay"]


def gradients(network: Network, images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The logits, and the gradient of each parameter that has one; none of the weights of norms and of whitening."""
    network.zero_grad()
    logits = network(images)
    logits.square().sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def test_the_bias_of_the_first_layer_trains_in_three_of_eight_epochs():
    network, images = Network(10), torch.rand(4, 3, 32, 32)
    RECIPE.before_step(network, 0.37)
    logits, trained = gradients(network, images)
    RECIPE.before_step(network, 0.375)
    same_logits, fixed = gradients(network, images)
    assert torch.equal(logits, same_logits)
    assert trained.pop("whitening.bias").abs().min() > 0
    assert torch.equal(fixed.pop("whitening.bias"), torch.zeros(24)), "DistributedDataParallel waits for each gradient"
    assert fixed.keys() == trained.keys()
    assert all(torch.equal(fixed[name], trained[name]) for name in fixed)
    config = recipes.resolve(parse_config({"recipe": "speedrun-cifar10"}))
    ends = {
        name: group.get("lr_share", 1.0)
        for group in RECIPE.optimizer(network, config).param_groups
        for name, parameter in network.named_parameters()
        if any(parameter is each for each in group["params"])
    }
    assert {name for name, share in ends.items() if share < 1} == {"whitening.bias"}
    assert ends["whitening.bias"] == 0.375


def test_a_checkpoint_with_all_biases_in_one_group_is_loaded():
    network = Network(10)
    optimizer = RECIPE.optimizer(network, recipes.resolve(parse_config({"recipe": "speedrun-cifar10"})))
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, index + group["lr_scale"])
    saved = optimizer.state_dict()
    filters, whitening, others, head = saved["param_groups"]
    saved["param_groups"] = [filters, {**others, "params": whitening["params"] + others["params"]}, head]
    again = RECIPE.optimizer(network, recipes.resolve(parse_config({"recipe": "speedrun-cifar10"})))
    again.load_state_dict(saved)
    assert [group.get("lr_share") for group in again.param_groups] == [None, 0.375, 1.0, 1.0]
    for parameter, state in optimizer.state.items():
        assert torch.equal(again.state[parameter]["momentum_buffer"], state["momentum_buffer"])


def test_all_views_have_one_layout_so_one_compiled_network_takes_them_all():
    """Views of two layouts cost a second compilation of each shape of batch."""
    strides = set()

    def network(view):
        strides.add(view.stride())
        return view.flatten(1)

    six_views(cast("Any", network), (torch.rand(2, 3, 32, 32), None))
    assert len(strides) == 1
