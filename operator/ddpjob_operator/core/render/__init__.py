"""What a decision looks like: the status, the actions, and the bodies of the objects that are created."""

from ddpjob_operator.core.render.actions import actions_of, remove_without_rank
from ddpjob_operator.core.render.status import finished, stalled, status_after, still_finished

__all__ = ["actions_of", "finished", "remove_without_rank", "stalled", "status_after", "still_finished"]
