"""Fingerprints of the programs that ranks run, which must be the same on all of them."""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path


def of_packages(names: Iterable[str], root: Path = Path(__file__).parents[1]) -> str:
    """Hash of the sources of packages of this project."""
    return of_files(root, (path for name in names for path in (root / name).rglob("*.py")))


def of_script() -> str:
    """Hash of the script that this process runs, and of the packages that a session is made of."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    script = of_files(Path(file).parent, [Path(file)]) if file else "none"
    return f"{script}-{of_packages(['ddpjob_ranks', 'ddpjob_session'])}"


def of_files(root: Path, paths: Iterable[Path]) -> str:
    """12 hexadecimal digits for the names, relative to `root`, and the content of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
