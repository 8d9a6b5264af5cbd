"""Images decoded ahead of the step: what a sample looks like depends on (seed, epoch, sample id) alone."""

import errno
import io

import numpy as np
import pytest
import torch
from PIL import Image

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.decoded import rgb
from ddpjob_recipes.decoding import Decoder
from ddpjob_recipes.host_images import HostImages, central_box, random_box, random_views
from ddpjob_trainer.data import Feed, FeedAhead, Preparation
from ddpjob_trainer.sampling import Sampling

CPU = torch.device("cpu")
PIXELS = Preparation(mean=(0.0,) * 3, std=(1.0,) * 3, max_shift=0, flip="random")


class Pictures:
    """Encoded images of differing sizes and colours."""

    def __init__(self, num_samples: int, file_format: str = "PNG") -> None:
        self.labels = [sample % 3 for sample in range(num_samples)]
        self.contents = [encoded(sample, file_format) for sample in range(num_samples)]

    def name(self, sample: int) -> str:
        return f"picture {sample}"

    def read(self, sample: int) -> bytes:
        return self.contents[sample]


def encoded(sample: int, file_format: str) -> bytes:
    width, height = 40 + 3 * sample, 60 - sample
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([across, down, np.full_like(across, 5 * sample)], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


def images(num_samples: int = 12, file_format: str = "PNG") -> HostImages:
    return HostImages(encoded=Pictures(num_samples, file_format), normalisation=PIXELS, size=16)


def decode_first(split: HostImages) -> torch.Tensor:
    """As sets that fit on the device are."""
    return Decoder().decode(split.encoded, 0, rgb)


def feeds(world_size: int, num_samples: int = 12) -> list[Feed]:
    plan = Sampling(num_samples=num_samples, global_batch_size=5, seed=3, device=CPU)
    return [
        Feed(split=images(num_samples), sampling=plan, rank=rank, world_size=world_size) for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ranks_together_see_what_one_rank_would(world_size):
    (alone,), together = feeds(1), feeds(world_size)
    for step in range(5):
        parts = [feed.batch(step) for feed in together]
        seen = torch.cat([part.content[0] for part in parts if part.weight])
        assert torch.equal(seen, alone.batch(step).content[0])
        assert torch.equal(torch.cat([part.content[1] for part in parts if part.weight]), alone.batch(step).content[1])


def test_every_epoch_shows_another_part_of_an_image():
    ids = torch.arange(12)
    first, _ = images().augmented(ids, seed=1, epoch=0)
    for seed, epoch in ((1, 1), (2, 0)):
        other, _ = images().augmented(ids, seed=seed, epoch=epoch)
        assert all(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_what_is_seen_is_the_box_resized_and_mirrored():
    ids = torch.arange(12)
    source, seen = images(), images().augmented(ids, seed=1, epoch=0)[0]
    mirrored = 0
    for sample, view in enumerate(random_views(ids, seed=1, epoch=0)):
        with Image.open(io.BytesIO(source.encoded.read(sample))) as picture:
            box, flip = view(*picture.size)
            expected = np.asarray(picture.resize((16, 16), Image.Resampling.BILINEAR, box=box))
        expected = expected[:, ::-1] if flip else expected
        assert torch.equal(seen[sample], torch.from_numpy(expected.copy()).permute(2, 0, 1).float())
        mirrored += flip
    assert 0 < mirrored < 12


def test_a_jpeg_at_a_smaller_scale_shows_the_same():
    """From a large JPEG only a smaller one is decoded; the box must be that of the whole."""
    file = io.BytesIO()
    across, down = np.meshgrid(np.linspace(0, 255, 400), np.linspace(0, 255, 320))
    Image.fromarray(np.stack([across, down, across], axis=2).astype(np.uint8)).save(file, "JPEG", quality=95)
    pictures = Pictures(1)
    pictures.contents = [file.getvalue()]
    ((seen, _),) = HostImages(encoded=pictures, normalisation=PIXELS, size=16).batches(slice(0, 1), 4)
    with Image.open(file) as picture:
        box = central_box(400, 320, share=224 / 256)
        expected = torch.from_numpy(np.array(picture.resize((16, 16), Image.Resampling.BILINEAR, box=box)))
    # Grey levels of 255. The decoder's arithmetic is in integers and the same on all processors.
    assert (seen[0] - expected.permute(2, 0, 1)).abs().max() <= 3


def test_boxes_lie_in_the_image_and_have_the_configured_areas_and_shapes():
    numbers = torch.rand(2000, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    shares = []
    for uniforms in numbers:
        left, upper, right, lower = random_box(500, 300, uniforms)
        assert 0 <= left < right <= 500
        assert 0 <= upper < lower <= 300
        assert 0.74 < (right - left) / (lower - upper) < 1.34
        shares.append((right - left) * (lower - upper) / (500 * 300))
    assert 0.08 <= min(shares) < 0.1
    assert max(shares) > 0.7


def test_an_image_that_no_box_fits_is_seen_in_its_middle():
    assert random_box(1000, 10, [0.9] * 40) == (495.0, 0.0, 505.0, 10.0)


def test_evaluation_has_each_image_once_in_order_and_the_same_each_time():
    split = images()
    batches = list(split.batches(slice(2, 12), 4))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert torch.cat([labels for _, labels in batches]).tolist() == split.encoded.labels[2:12]
    again = torch.cat([pixels for pixels, _ in split.batches(slice(2, 12), 3)])
    assert torch.equal(torch.cat([pixels for pixels, _ in batches]), again)


def damaged(*samples: int, max_unreadable: int) -> HostImages:
    pictures = Pictures(6)
    for sample in samples:
        pictures.contents[sample] = pictures.contents[sample][:50]
    decoder = Decoder(max_unreadable=max_unreadable)
    return HostImages(encoded=pictures, normalisation=PIXELS, size=16, decoder=decoder)


def test_a_damaged_image_is_named():
    with pytest.raises(
        ConfigError, match=r"picture 2 cannot be decoded: .*; replace or remove it, or set maxUnreadable"
    ):
        damaged(2, max_unreadable=0).augmented(torch.arange(4), seed=0, epoch=0)


def test_any_error_of_pillow_is_one_of_the_image():
    """Pillow reports a damaged chunk of a PNG as a SyntaxError, and only when it decodes the pixels."""
    pictures = Pictures(1)
    content = bytearray(pictures.contents[0])
    content[33:37] = bytes(4)  # length of the chunk after the header
    pictures.contents[0] = bytes(content)
    with pytest.raises(SyntaxError, match="broken PNG"), Image.open(io.BytesIO(content)) as picture:
        picture.load()
    with pytest.raises(ConfigError, match="picture 0 cannot be decoded: broken PNG"):
        decode_first(HostImages(encoded=pictures, normalisation=PIXELS, size=16))


def test_training_takes_the_next_image_in_the_place_of_a_damaged_one_and_names_it_once(capsys):
    split, whole = damaged(2, 3, 5, max_unreadable=3), images(6)
    shown = {0: 0, 1: 1, 2: 4, 4: 4, 5: 0}
    for ids in (torch.tensor([1, 2, 5]), torch.tensor([2])):
        seen, labels = split.augmented(ids, seed=1, epoch=0)
        assert labels.tolist() == [whole.encoded.labels[shown[sample]] for sample in ids.tolist()]
        assert seen.shape == (len(ids), 3, 16, 16)
    sound = torch.tensor([0, 1, 4])
    assert torch.equal(split.augmented(sound, seed=1, epoch=0)[0], whole.augmented(sound, seed=1, epoch=0)[0])
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.partition(" cannot")[0] for line in lines) == [f"data: picture {n}" for n in (2, 3, 5)]


def test_evaluation_leaves_damaged_images_out():
    split, whole = damaged(0, 1, 3, max_unreadable=3), images(6)
    batches = list(split.batches(slice(0, 6), 2))
    assert [labels.tolist() for _, labels in batches] == [[], [2], [1, 2]]
    expected = torch.cat([pixels for pixels, _ in whole.batches(slice(0, 6), 2)])
    assert torch.equal(torch.cat([pixels for pixels, _ in batches]), expected[[2, 4, 5]])


def test_more_damaged_images_than_allowed_end_the_job():
    with pytest.raises(
        ConfigError, match=r"picture \d cannot be decoded: .*; 2 others were skipped; replace or remove"
    ):
        damaged(0, 1, 3, max_unreadable=2).augmented(torch.arange(6), seed=0, epoch=0)
    with pytest.raises(ConfigError, match="none of 6 images can be decoded"):
        damaged(*range(6), max_unreadable=9).augmented(torch.arange(2), seed=0, epoch=0)


@pytest.mark.parametrize("decoded", [lambda split: split.augmented(torch.arange(4), seed=0, epoch=0), decode_first])
def test_storage_that_fails_for_now_is_no_mistake_of_the_data(decoded, monkeypatch):
    def stale(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Pictures, "read", stale)
    with pytest.raises(OSError, match="Stale file handle"):
        decoded(images(4))


@pytest.mark.parametrize("steps", [range(8), [0, 3, 4, 5, 2, 0]], ids=["in order", "resumed and going back"])
def test_batches_prepared_ahead_are_the_same(steps):
    (plain,) = feeds(1)
    ahead = FeedAhead(plain, num_steps=100, steps_ahead=3)
    for step in steps:
        assert torch.equal(ahead.batch(step).content[0], plain.batch(step).content[0])
        assert torch.equal(ahead.batch(step).content[1], plain.batch(step).content[1])


def test_batches_are_prepared_ahead_of_their_step():
    (plain,) = feeds(1)
    ahead = FeedAhead(plain, num_steps=100, steps_ahead=2)
    ahead.batch(0)
    ahead._thread.submit(bool).result()  # runs after what was started before it
    assert sorted(step for step, batch in ahead._coming.items() if batch.done()) == [1, 2]


@pytest.mark.parametrize(
    ("steps", "kept"), [([7, 0], {1, 2}), ([0, 7], {8, 9}), ([5, 6], {7, 8}), ([8], {9}), ([9], set())]
)
def test_no_batches_are_kept_of_another_place_or_made_beyond_the_last_step(steps, kept):
    (plain,) = feeds(1)
    ahead = FeedAhead(plain, num_steps=10, steps_ahead=2)
    for step in steps:
        ahead.batch(step)
    assert set(ahead._coming) == kept


def test_an_error_of_a_batch_prepared_ahead_is_raised_at_its_step():
    pictures = Pictures(12)
    plan = Sampling(num_samples=12, global_batch_size=4, seed=3, device=CPU)
    bad = int(plan.global_batch(1)[0])
    pictures.contents[bad] = b"no image"
    split = HostImages(encoded=pictures, normalisation=PIXELS, size=16)
    ahead = FeedAhead(Feed(split=split, sampling=plan, rank=0, world_size=1), num_steps=3)
    assert ahead.batch(0).num_samples == 4
    with pytest.raises(ConfigError, match=f"picture {bad} cannot"):
        ahead.batch(1)


def test_data_that_differ_in_a_late_label_or_a_byte_have_another_fingerprint():
    def fingerprint(*changes):
        pictures = Pictures(12)
        pictures.contents = [bytes([sample]) * 4 for sample in range(12)]  # no images: nothing is decoded for it
        for change in changes:
            change(pictures)
        return HostImages(encoded=pictures, normalisation=PIXELS, size=16).fingerprint()

    def another_label(pictures):
        pictures.labels[-1] += 1

    def another_byte(pictures):
        pictures.contents[7] = b"\7\7\7\0"

    def fewer(pictures):
        del pictures.labels[-1]

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), *map(fingerprint, (another_label, another_byte, fewer))}) == 4
