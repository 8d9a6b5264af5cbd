"""Packages that a machine without network lacks, from a folder that was carried to it (`make gpu-wheels` prepares it).

The folder has a folder for each group, named after the module that shows whether the group is installed: only what the
machine lacks is used. Importing this module does so, as it has to come before anything that imports pydantic.
"""

import importlib.util
import os
import sys
from pathlib import Path

#: Overrides the place of the folder.
VARIABLE = "DDPJOB_CARRIED"
DEFAULT = Path(__file__).parents[2] / "build" / "gpu"
PACKAGES = "packages"


def folder() -> Path:
    """Where the carried folder is, whether it exists or not."""
    return Path(os.environ.get(VARIABLE) or DEFAULT).absolute()


def use() -> list[str]:
    """Make the missing groups importable, here and in child processes; returns their names."""
    groups = sorted(path for path in (folder() / PACKAGES).glob("*") if path.is_dir())
    missing = [group for group in groups if importlib.util.find_spec(group.name) is None]
    added = [str(group) for group in missing]
    if added:
        sys.path[:0] = added
        # The children have this program's own folders too, wherever they are started.
        own, given = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([*added, own, *filter(None, [given])])
        importlib.invalidate_caches()
    return [group.name for group in missing]


USED = use()
