"""The known state of the cluster: caches by resourceVersion, informers, the audit, the store with its index by job."""
