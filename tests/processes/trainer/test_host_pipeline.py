"""Images decoded ahead of the step, from a folder and from a packed file, through a stop: not a bit differs."""

import numpy as np
import pytest
from PIL import Image

from ddpjob_ranks import contract
from ddpjob_recipes import pack
from ddpjob_recipes.folder import open_folder
from support.forked_ranks import finished

KEYS = (
    "recipe=resnet50-224",
    "epochs=1",
    "globalBatchSize=4",
    "learningRate=0.01",
    "warmupEpochs=0",
    "checkpointEverySteps=1",
    "keepCheckpoints=10",
    "logEverySteps=1",
    "dataWorkers=0",  # the ranks of this test are daemons of its process, which may have no children
)


@pytest.fixture
def folder(tmp_path):
    """Eight small photographs of noise in two classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 1)):
        for name in ("cat", "dog"):
            for number in range(count):
                path = tmp_path / "images" / split / name / f"{number}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                size = (40 + 4 * number, 60)
                Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return tmp_path / "images"


def test_a_resumed_run_on_the_packed_file_has_the_bits_of_one_on_the_folder(folder, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    environ = {contract.DDPJOB_DATA_DIR: str(folder), contract.DDPJOB_CHECKPOINT_DIR: str(checkpoints)}
    whole = finished(tmp_path / "whole", *KEYS, environ=environ)
    assert sorted(whole.losses) == [1, 2]

    for path in checkpoints.glob("step-0000000002-*"):
        path.unlink()
    packed = tmp_path / "images.pack"
    pack.write_packed(open_folder(folder), packed)
    resumed = finished(tmp_path / "resumed", *KEYS, environ={**environ, contract.DDPJOB_DATA_DIR: str(packed)})

    assert "resumed from step 1" in resumed.text()
    assert resumed.losses == {2: whole.losses[2]}
    assert resumed.weights == whole.weights
    assert "(2 held-out samples)" in resumed.text()

    other = folder / "train/cat/3.jpg"
    other.write_bytes((folder / "train/dog/3.jpg").read_bytes())
    refused = finished(tmp_path / "refused", *KEYS, environ=environ, expected=contract.EXIT_BAD_CONFIG)
    assert "data was '8 samples, " in refused.message()
    assert "give the training that data again (DDPJOB_DATA_DIR), or rename the job" in refused.message()
