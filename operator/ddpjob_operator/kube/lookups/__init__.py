"""What decisions need beyond the caches: logs, nodes, warnings and progress, read in the background."""
