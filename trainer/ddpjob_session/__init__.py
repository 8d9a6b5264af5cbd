"""What every training needs, whatever it trains: stop, checkpoints, progress, watchdog and ending of one rank."""
