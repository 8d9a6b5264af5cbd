"""Ten lines in a training script of your own: process group, checkpoints, exact resume, stop on request, progress, watchdog.

    with Session() as session:
        model = session.replicate(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = session.track(model=model, optimizer=optimizer)  # restored here, if there is a checkpoint
        for step in session.steps(total=10_000):  # continues where the last attempt stopped
            ...
            session.report(loss=loss)

The script runs alone, under `python -m ddpjob.launch`, torchrun, srun and in a DDPJob, with and without GPUs.
"""

from ddpjob_session.observers import Beginning, Observer
from ddpjob_session.session import Session
from ddpjob_session.state import Stateful
from ddpjob_session.steps import Steps, Stopped

__all__ = ["Beginning", "Observer", "Session", "Stateful", "Steps", "Stopped"]
