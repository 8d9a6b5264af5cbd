"""The reason of an end, and what others print after it; argv[1] names them."""

import multiprocessing
import os
import sys

print("config error: data folder /data is empty", file=sys.stderr)
match sys.argv[1]:
    case "semaphores":
        kept = multiprocessing.get_context("spawn").Semaphore()
        os._exit(1)
    case "wandb":  # as it prints it
        print("wandb: \nwandb: 🚀 View run glad-sun-3 at: https://wandb.ai/x/y", file=sys.stderr)
        print("wandb: Find logs at: wandb/run-1/logs", file=sys.stderr)
        sys.exit(1)
