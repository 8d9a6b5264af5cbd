"""Requests to the API server: access, client, errors, kinds of objects."""
