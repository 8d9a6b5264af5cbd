"""The state of the training in memory that outlives a rank: written when a rank ends (CPUs), or every few seconds (GPUs)."""
