#!/usr/bin/env python3
"""What `python -m ddpjob_trainer` does with a pod, for another program: resolve the place, launch the ranks."""

import os
import sys
from pathlib import Path

from ddpjob_ranks.launch import identity, launcher

command = [sys.executable, str(Path(__file__).with_name("allreduce.py"))]
place = identity.resolve(os.environ)
if isinstance(place, identity.Node):
    sys.exit(launcher.run(place, command, os.environ))
os.execv(command[0], command)  # noqa: S606 - no shell is meant
