"""A wrong argument: argparse prints its usage and one line, and exits with 2."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args(["--lr", "fast"])
