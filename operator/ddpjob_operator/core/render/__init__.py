"""What a decision looks like: the status, the actions, and the bodies of the objects that are created."""

from ddpjob_operator.core.render.actions import actions_of, remove_placeholders
from ddpjob_operator.core.render.status import finished, stalled, status_after, still_finished

__all__ = ["actions_of", "finished", "remove_placeholders", "stalled", "status_after", "still_finished"]
