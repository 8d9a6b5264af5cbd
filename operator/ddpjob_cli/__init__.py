"""The `ddpjob` command."""
