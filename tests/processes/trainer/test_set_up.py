"""What a rank does before its first step."""

from dataclasses import replace
from types import SimpleNamespace

from ddpjob_ranks.launch.identity import Worker
from ddpjob_trainer import recipes, worker
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import Feed
from ddpjob_trainer.report import Reporter

ALONE = Worker(rank=0, world_size=1, local_rank=0, local_world_size=1, launcher="test", master_addr="", master_port=0)


def test_one_batch_is_decoded_before_the_first_step(gang, monkeypatch):
    digits = recipes.find("digits")
    from_host = replace(digits, load=lambda path, config: replace(digits.load(path, config), on_host=True))
    monkeypatch.setattr(recipes, "find", lambda _: from_host)
    monkeypatch.setattr(worker, "StopRequest", lambda: SimpleNamespace(received=False))  # takes no signal of pytest's
    decoded = []
    batch = Feed.batch
    monkeypatch.setattr(Feed, "batch", lambda feed, step: decoded.append(step) or batch(feed, step))
    training = worker.set_up(parse_config({"recipe": "digits"}), ALONE, gang, Reporter(enabled=False))
    assert decoded == [0]
    training.feed.batch(0)
    assert set(training.feed._coming) == {1, 2}
