"""Benchmarks of the trainer: `python -m bench.trainer speed|accuracy|overhead`."""
