"""Faults of every kind at every phase of a training job, on real nodes. README.md says how to run it and what it shows."""
