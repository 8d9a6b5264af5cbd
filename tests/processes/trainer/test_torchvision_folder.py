"""torchvision's ImageFolder is a map-style data set like any other: it trains with and without workers, to the same bits."""

import pytest
from PIL import Image

from ddpjob_ranks import contract
from support.forked_ranks import finished, may_have_workers
from support.programs.folder_recipe import SIZE

COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


@pytest.fixture
def images(tmp_path):
    """Ten images of each colour to train on, and two that are held out; each has a corner by which it can be told."""
    for split, numbers in (("train", range(10)), ("test", range(10, 12))):
        for name, colour in COLOURS.items():
            (tmp_path / split / name).mkdir(parents=True)
            for number in numbers:
                image = Image.new("RGB", (SIZE, SIZE), colour)
                image.paste((20 * number, 20 * number, 20 * number), (0, 0, 3, 3))
                image.save(tmp_path / split / name / f"{number}.png")
    return tmp_path


def test_a_folder_of_torchvision_trains_with_a_worker_to_the_same_bits_as_without(images, tmp_path):
    environ = {contract.DDPJOB_DATA_DIR: str(images)}
    one, none = (
        finished(
            tmp_path / str(workers),
            "recipe=support.programs.folder_recipe:folder",
            f"dataWorkers={workers}",
            "logEverySteps=1",
            ranks=2,
            environ=environ,
            first=may_have_workers,
        )
        for workers in (1, 0)
    )
    assert len(one.losses) == 12
    assert one.losses == none.losses
    assert one.weights == none.weights
    assert one.accuracy == 100
