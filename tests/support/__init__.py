"""What tests of several folders share: builders, stand-ins, processes and clusters."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
