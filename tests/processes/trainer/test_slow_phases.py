"""One process that moves its mark by hand, with limits of seconds: what may take long, and what may not."""

from ddpjob_ranks import contract
from standstill import watched

SCRIPT = """
config = parse_config({"recipe": "digits", "firstStepTimeoutSeconds": 40, "stepTimeoutSeconds": 4})
with watching(config):
    timeline.begin_training(step=0)
    time.sleep(5)
    print("the first step", flush=True)
    timeline.step_done(1, num_samples=1)
    timeline.enter(Phase.EVALUATE)
    for _ in range(26):  # longer in all than the 12 s in which an evaluation has to move
        time.sleep(0.5)
        timeline.moved()
    print("batches of an evaluation", flush=True)
    timeline.enter(Phase.CHECKPOINT)
    time.sleep(5)
    print("a checkpoint", flush=True)
    timeline.enter(Phase.DATA)
    time.sleep(600)
"""


def test_the_first_step_an_evaluation_and_a_checkpoint_may_take_long_but_a_step_may_not():
    done = watched(SCRIPT)
    assert done.stdout.splitlines() == ["the first step", "batches of an evaluation", "a checkpoint"]
    assert done.returncode == contract.EXIT_HUNG
    assert " makes no progress: in data after 1 steps for " in done.stderr
    assert "\nthread MainThread\n" in done.stderr
