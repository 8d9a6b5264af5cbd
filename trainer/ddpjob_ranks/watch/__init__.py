"""What ranks do and how long: marks and spans, the watchdog, where the time went, the evidence of a run."""
