"""A simulated cluster, with the real operator logic in it, in virtual time.

What runs is the operator's own code: `plan`, the caches, informers, work queue, expectations, actuator, status writer and
background reads. What is modelled is everything around it: the API server, the network, the scheduler, the kubelets, the
training programs, the users and the clocks. One seed and one list of disturbances decide all that happens, so a schedule
that breaks an invariant breaks it again.

`world.py` puts it together, `schedule.py` says what a schedule is, `invariants` what must hold.
"""
