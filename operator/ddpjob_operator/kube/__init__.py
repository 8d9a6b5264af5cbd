"""The cluster side: client, informers, work queue, actuator, status writer."""
