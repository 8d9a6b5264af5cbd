"""The local backend: runs the pods that the core renders as processes of this machine."""
