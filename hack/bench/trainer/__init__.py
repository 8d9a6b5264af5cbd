"""Benchmarks of the trainer: `python -m bench.trainer speed|scale|accuracy|in-place|overhead`."""
