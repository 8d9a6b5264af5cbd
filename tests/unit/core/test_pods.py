"""Pods as they are rendered from the spec of a job."""
