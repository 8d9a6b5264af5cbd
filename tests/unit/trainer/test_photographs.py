"""Images decoded for each step: which part of each is seen, and what becomes of those that cannot be decoded."""

import errno
import io
import multiprocessing
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes import resnet50_224
from ddpjob_recipes.decoded import rgb
from ddpjob_recipes.decoding import decoders
from ddpjob_recipes.folder import Splits
from ddpjob_recipes.photographs import Photographs


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


def split(pictures, *, training: bool = True, max_unreadable: int = 0) -> Photographs:
    """The pictures as a training split or a held-out one."""
    both = decoders(Splits(train=pictures, test=pictures, classes=["a", "b", "c"]), max_unreadable)
    return Photographs(decoder=both[0 if training else 1], classes=["a", "b", "c"], size=16, training=training)


def seeded(photographs: Photographs, sample: int, seed: int):
    torch.manual_seed(seed)
    return photographs[sample]


def test_a_training_image_is_seen_in_many_ways_and_each_follows_from_the_generator():
    photographs = split(Pictures(2))
    views = [seeded(photographs, 0, seed)[0] for seed in range(8)]
    assert len({view.numpy().tobytes() for view in views}) == 8
    assert torch.equal(views[3], seeded(photographs, 0, 3)[0])
    red = torch.stack(views)[:, 8, :, 0].int()  # grows from left to right, unless the view is mirrored
    assert {bool(row[-1] > row[0]) for row in red} == {True, False}


def test_a_jpeg_at_a_smaller_scale_shows_the_same():
    """From a large JPEG only a smaller one is decoded; the box must be that of the whole."""
    file = io.BytesIO()
    across, down = np.meshgrid(np.linspace(0, 255, 400), np.linspace(0, 255, 320))
    Image.fromarray(np.stack([across, down, across], axis=2).astype(np.uint8)).save(file, "JPEG", quality=95)
    pictures = Pictures(1)
    pictures.contents = [file.getvalue()]
    seen, _ = split(pictures, training=False)[0]
    with Image.open(file) as picture:
        # The middle square of 7/8 of the shorter side, as (left, upper, right, lower).
        expected = torch.from_numpy(
            np.array(picture.resize((16, 16), Image.Resampling.BILINEAR, box=(60, 20, 340, 300)))
        )
    # Grey levels of 255. The decoder's arithmetic is in integers and the same on all processors.
    assert (seen.int() - expected.int()).abs().max() <= 3


def damaged(*samples: int) -> Pictures:
    pictures = Pictures(6)
    for sample in samples:
        pictures.contents[sample] = pictures.contents[sample][:50]
    return pictures


def test_a_damaged_image_is_named():
    with pytest.raises(
        ConfigError, match=r"picture 2 cannot be decoded: .*; replace or remove it, or set maxUnreadable"
    ):
        split(damaged(2))[2]


def test_any_error_of_pillow_is_one_of_the_image():
    """Pillow reports a damaged chunk of a PNG as a SyntaxError, and only when it decodes the pixels."""
    pictures = Pictures(1)
    content = bytearray(pictures.contents[0])
    content[33:37] = bytes(4)  # length of the chunk after the header
    pictures.contents[0] = bytes(content)
    with pytest.raises(SyntaxError, match="broken PNG"), Image.open(io.BytesIO(content)) as picture:
        picture.load()
    with pytest.raises(ConfigError, match="picture 0 cannot be decoded: broken PNG"):
        split(pictures).decoder.decode(0, rgb)  # as images that fit on the device are


def test_training_takes_the_next_image_in_the_place_of_a_damaged_one_and_names_it_once(capsys):
    photographs = split(damaged(2, 3, 5), max_unreadable=3)
    for sample, shown in 2 * [(1, 1), (2, 4), (3, 4), (5, 0)]:
        pixels, label = photographs[sample]
        assert label == shown % 3
        assert (pixels[:, :, 2] == 5 * shown).all()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" cannot")[0] for line in lines] == [f"data: picture {n}" for n in (2, 3, 5)]


def test_evaluation_leaves_damaged_images_out():
    photographs = split(damaged(0, 1, 3), training=False, max_unreadable=3)
    batches = [photographs.collate([photographs[sample] for sample in part]) for part in ((0, 1), (2, 3), (4, 5))]
    assert [labels.tolist() for _, labels in batches] == [[], [2], [1, 2]]
    assert [pixels.shape for pixels, _ in batches] == [(count, 16, 16, 3) for count in (0, 1, 2)]


def test_more_damaged_images_than_allowed_end_the_job():
    photographs = split(damaged(0, 1, 3), max_unreadable=2)
    photographs[0]
    with pytest.raises(ConfigError, match=r"picture 3 cannot be decoded: .*; 2 others were skipped; replace or remove"):
        photographs[3]
    with pytest.raises(ConfigError, match="none of 6 images can be decoded"):
        split(damaged(*range(6)), max_unreadable=9)[0]


def test_both_splits_and_all_workers_skip_up_to_the_allowed_number_together(capfd):
    train, test = (
        Photographs(decoder=decoder, classes=[], size=16, training=False)
        for decoder in decoders(Splits(train=damaged(0, 1), test=damaged(2), classes=[]), 2)
    )
    fork = multiprocessing.get_context("fork")
    assert list(DataLoader(cast("Any", train), batch_size=None, num_workers=2, multiprocessing_context=fork))[:2] == [
        None,
        None,
    ]
    named = sorted(line.partition(" cannot")[0] for line in capfd.readouterr().err.splitlines())
    assert named == ["data: picture 0", "data: picture 1"]
    with pytest.raises(ConfigError, match=r"picture 2 cannot be decoded: .*; 2 others were skipped"):
        test[2]


def test_storage_that_fails_for_now_is_no_mistake_of_the_data(monkeypatch):
    def stale(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Pictures, "read", stale)
    with pytest.raises(OSError, match="Stale file handle"):
        split(Pictures(4))[0]


def test_images_that_differ_in_a_byte_have_another_version():
    def version(*changes):
        pictures = Pictures(12)
        pictures.contents = [bytes([sample]) * 4 for sample in range(12)]  # no images: nothing is decoded for it
        for change in changes:
            change(pictures)
        return split(pictures).version

    def another_label(pictures):
        pictures.labels[-1] += 1

    def another_byte(pictures):
        pictures.contents[7] = b"\7\7\7\0"

    def fewer(pictures):
        del pictures.labels[-1]

    assert version() == version()
    assert len({version(), *map(version, (another_label, another_byte, fewer))}) == 4


def test_a_batch_of_bytes_is_normalised_and_laid_out_as_the_network_wants_it():
    mean_colour = torch.tensor([124, 116, 104], dtype=torch.uint8)
    seen = resnet50_224.forward(torch.nn.Identity(), (mean_colour.expand(1, 4, 2, 3), None))
    assert seen.shape == (1, 3, 4, 2)
    assert seen.abs().max() < 0.02
