"""The reconcile loop: work queue, reconciler, actuator, status writer, Events."""
