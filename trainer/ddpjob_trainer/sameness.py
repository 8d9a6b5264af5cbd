"""What must be the same on all ranks before they train together: sources, configuration, data.

The data must also be the same when a training is resumed, so their fingerprints are in the checkpoints.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddpjob_ranks import checks
from ddpjob_ranks.distributed import Gang
from ddpjob_trainer.config import TrainerConfig
from ddpjob_trainer.data import DataSet

#: Packages that take part in training.
PACKAGES: Final = ("ddpjob_ranks", "ddpjob_trainer", "ddpjob_recipes")


def of_program(config: TrainerConfig) -> Mapping[str, str]:
    """Fingerprint of the sources, and each value of the configuration, by name."""
    given = config.model_dump(by_alias=True)
    keys = {key: "the recipe's default" if value is None else json.dumps(value) for key, value in given.items()}
    return {"code": code_fingerprint(Path(__file__).parents[1]), **keys}


def code_fingerprint(root: Path) -> str:
    """Hash of the sources of all packages that train, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def check_data(gang: Gang, data: DataSet) -> Mapping[str, str]:
    """The fingerprints of both splits, which are the same on all ranks.

    Raises:
        RefusedError: the ranks have loaded different data.
    """
    fingerprints = {"data": data.train.fingerprint(), "held-out data": data.test.fingerprint()}
    checks.check_same(gang, fingerprints)
    return fingerprints
