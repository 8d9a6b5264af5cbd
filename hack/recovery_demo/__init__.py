"""Shows a restart in place on this machine: `make demo-recovery`."""
