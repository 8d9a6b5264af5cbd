"""What the trainer costs: side-by-side speed, scaling, comparisons, DDP's buckets. Nothing in here trains anything."""
