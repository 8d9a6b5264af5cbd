"""A process that starts others, of which one fails; argv[1] says how it starts them."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor


def train(rank: int) -> None:
    """Fail in the last process."""
    if rank == 1:
        raise ValueError("label 12 is out of range for 10 classes")


if __name__ == "__main__":
    match sys.argv[1]:
        case "spawn":
            import torch.multiprocessing

            torch.multiprocessing.spawn(train, nprocs=2)
        case "subprocess":
            subprocess.run([sys.executable, "-c", "import wrappers; wrappers.train(1)"], check=True)
        case "pool":
            with ProcessPoolExecutor(1) as pool:
                pool.submit(train, 1).result()
