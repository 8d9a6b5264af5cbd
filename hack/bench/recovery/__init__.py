"""From the SIGKILL of a rank to the next step: `make demo-recovery`, `make bench-recovery`, `make bench-recovery-nodes`."""
