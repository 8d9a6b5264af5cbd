"""Programs that ranks of tests run, started by their path or as modules."""

from pathlib import Path

PROGRAMS = Path(__file__).parent
