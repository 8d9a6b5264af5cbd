"""What must hold whatever happens, checked at each change of the API server against what truly runs.

A process that may not be the only one to write (a second operator, or requests of a dead one still on their way) is
excused from the order of attempts, as the design says: its stragglers are deleted on sight, the Service never selects
them, and the fence keeps them from the checkpoints. Nothing else is excused from anything.

`created_pods.py`, `deleted_pods.py`, `statuses.py` and `services.py` hold what each change must keep, `afterwards.py`
what must hold once a schedule is over. `checker.py` observes the API server for them.
"""
