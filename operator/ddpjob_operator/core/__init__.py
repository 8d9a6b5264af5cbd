"""Pure decisions: what a job needs, given all that is known of it. No I/O, no clock, no kopf, no client."""
