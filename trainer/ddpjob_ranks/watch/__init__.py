"""What ranks do and how long: marks and spans, the verdict on a standstill, where the time went, the evidence of a run."""
