"""One process that stands still, whose first question nobody judges."""

from ddpjob_ranks import contract
from standstill import watched

SCRIPT = """
JUDGE = Watchdog._judge


def judge(watchdog):
    if watchdog._round == 0:
        watchdog._ask(watchdog._judge_store, 0)  # and no verdict, as of a rank that is stopped then
    else:
        JUDGE(watchdog)


Watchdog._judge = judge
config = parse_config({"recipe": "digits", "firstStepTimeoutSeconds": 1, "stepTimeoutSeconds": 1})
with watching(config):
    timeline.enter(Phase.DATA)
    time.sleep(60)
"""


def test_the_next_question_is_judged():
    done = watched(SCRIPT)
    assert done.returncode == contract.EXIT_HUNG
    assert "ddpjob verdict: rank 0 (host " in done.stderr
    assert " makes no progress: in data after 0 steps for " in done.stderr
