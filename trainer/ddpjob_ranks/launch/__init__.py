"""How ranks start: which rank a process is, the processes of a node, the rendezvous, and the checks before training."""
