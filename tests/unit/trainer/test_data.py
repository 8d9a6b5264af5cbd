"""How samples are changed at random, and how a batch is made of them."""

from dataclasses import replace

import torch

from ddpjob_trainer import randomness
from ddpjob_trainer.data import Preparation, Split

PREPARATION = Preparation(mean=(10.0, 20.0, 30.0), std=(2.0, 4.0, 8.0), max_shift=2, flip="random")
IDS = torch.arange(300)
IMAGES = torch.randint(0, 256, (300, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def drawn(stream: int, sample: int, epoch: int) -> int:
    return int(randomness.uniform_integers(torch.tensor([sample]), seed=7, epoch=epoch, stream=stream).item())


def augmented_by(preparation: Preparation, *, seed: int = 7, epoch: int = 3, ids: torch.Tensor = IDS) -> torch.Tensor:
    return preparation.augment(IMAGES[ids], preparation.views(ids, seed=seed, epoch=epoch))


def test_an_augmented_image_is_a_mirrored_crop_of_the_padded_image():
    augmented = augmented_by(PREPARATION)
    for sample in range(40):
        image = PREPARATION.normalise(IMAGES[sample : sample + 1])[0]
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        row, column = (drawn(s, sample, 3) % 5 for s in (randomness.SHIFT_ROWS, randomness.SHIFT_COLUMNS))
        expected = padded[:, row : row + 6, column : column + 5]
        if drawn(randomness.FLIP, sample, 3) % 2:
            expected = expected.flip(2)
        assert torch.equal(augmented[sample], expected)


def test_an_image_does_not_depend_on_the_other_images_of_its_batch():
    whole = augmented_by(PREPARATION)
    some = torch.tensor([250, 3, 77])
    assert torch.equal(augmented_by(PREPARATION, ids=some), whole[some])


def test_a_batch_of_a_split_is_seen_as_its_samples_alone_would_be():
    split = Split(images_NCHW=IMAGES, labels_N=IDS, preparation=PREPARATION)
    some = torch.tensor([250, 3, 77])
    for seed, epoch in ((7, 3), (7, 4), (8, 4), (7, 3)):
        images, labels = split.augmented(some, seed=seed, epoch=epoch)
        assert torch.equal(images, augmented_by(PREPARATION, seed=seed, epoch=epoch, ids=some))
        assert torch.equal(labels, some)


def test_images_may_be_kept_as_they_are():
    preparation = replace(PREPARATION, max_shift=0, flip="never")
    assert torch.equal(augmented_by(preparation), preparation.normalise(IMAGES))


def test_every_epoch_and_seed_differs():
    first = augmented_by(PREPARATION)
    for seed, epoch in ((7, 4), (8, 3)):
        assert not torch.equal(first, augmented_by(PREPARATION, seed=seed, epoch=epoch))


def test_alternating_flips_show_both_sides_of_each_image_in_two_epochs():
    preparation = replace(PREPARATION, max_shift=0, flip="alternating")
    plain = preparation.normalise(IMAGES)
    epochs = [augmented_by(preparation, epoch=epoch) for epoch in range(3)]
    mirrored = [not torch.equal(image, original) for image, original in zip(epochs[0], plain, strict=True)]
    assert 100 < sum(mirrored) < 200
    assert torch.equal(epochs[1], epochs[0].flip(3))
    assert torch.equal(epochs[2], epochs[0])


def test_reflected_borders_hold_pixels_of_the_image():
    preparation = replace(PREPARATION, flip="never", reflect=True)
    augmented = augmented_by(preparation)
    padded = torch.nn.functional.pad(preparation.normalise(IMAGES), (2, 2, 2, 2), mode="reflect")
    row, column = (drawn(s, 5, 3) % 5 for s in (randomness.SHIFT_ROWS, randomness.SHIFT_COLUMNS))
    assert torch.equal(augmented[5], padded[5, :, row : row + 6, column : column + 5])


def test_normalised_images_have_the_given_mean_and_deviation():
    pixels = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    assert PREPARATION.normalise(pixels).flatten().tolist() == [0.0, 0.0, 0.0]
    assert PREPARATION.normalise(pixels + 8).flatten().tolist() == [4.0, 2.0, 1.0]


def test_numbers_are_even_and_streams_independent():
    ids = torch.arange(20_000)
    seen = [
        randomness.uniform_integers(ids, seed=seed, epoch=epoch, stream=stream)
        for seed in (0, 1)
        for epoch in (0, 1)
        for stream in (randomness.ORDER, randomness.FLIP)
    ]
    for numbers in seen:  # from integers alone, so that every processor has the same
        assert int(numbers.min()) >= 0
        assert int(numbers.max()) < 2**32
        counts = torch.bincount(numbers % 9, minlength=9).double()
        chi_square = float(((counts - 20_000 / 9) ** 2 / (20_000 / 9)).sum())
        assert chi_square < 30  # 8 degrees of freedom: exceeded once in 5,000 times
    correlation = torch.corrcoef(torch.stack(seen).double())
    assert float((correlation - torch.eye(len(seen))).abs().max()) < 0.03


def test_the_numbers_are_pinned():
    """Another value here would give other training runs than those people have checkpoints of."""
    numbers = randomness.uniform_integers(torch.tensor([0, 1, 49_999]), seed=3, epoch=2, stream=randomness.ORDER)
    assert numbers.tolist() == [1454990101, 2465148706, 597078382]
