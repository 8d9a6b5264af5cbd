"""The cluster side: `engine` reconciles, `lookups` and `cache` know the cluster, `transport` talks to the API server."""
