"""Benchmarks of the trainer: `python -m bench.trainer speed|scale|accuracy|compare|in-place|overhead`."""
