"""Saving and loading checkpoints: host copy, writer, folder with manifests, and the claim that fences the folder."""
