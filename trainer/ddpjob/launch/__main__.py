"""The command `python -m ddpjob.launch`."""

import sys

from ddpjob.launch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
