import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddpjob_ranks import contract
from support.forked_ranks import finished


def spans_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_ranks_write_their_spans_and_traces_and_one_evidence_file(tmp_path):
    folder = tmp_path / "events"
    environ = {contract.DDPJOB_EVENTS_DIR: str(folder), contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    run = finished(tmp_path, "epochs=2", "profileSteps=[30, 32]", ranks=2, environ=environ)

    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "attempt-1-evidence.json",
        "attempt-1-rank-0.jsonl",
        "attempt-1-rank-1.jsonl",
        "attempt-1-values.jsonl",
    ]
    for rank in range(2):
        spans = spans_of(folder / f"attempt-1-rank-{rank}.jsonl")
        assert {span["rank"] for span in spans} == {rank}
        names = [span["span"] for span in spans]
        assert names[:4] == ["start", "import", "rendezvous", "connect"]
        assert {"data", "first_step", "steps", "checkpoint", "evaluate"} <= set(names)
        steps = [span for span in spans if span["span"] in ("first_step", "steps")]
        assert sum(span["num_steps"] for span in steps) == 46
        assert sum(span["num_samples"] for span in steps) == 2 * 1438

    evidence = json.loads((folder / "attempt-1-evidence.json").read_text())
    assert (evidence["complete"], evidence["first_step"], evidence["last_step"]) == (True, 0, 46)
    assert evidence["weights_sha256"] == run.weights
    assert 100 * evidence["accuracy_by_step"]["46"] == pytest.approx(run.accuracy, abs=0.005)
    assert 0 < evidence["seconds_of_training"] < evidence["seconds_since_process_start"]
    assert len(evidence["hardware"]) == evidence["world_size"] == 2
    assert evidence["config"]["recipe"] == "digits"
    assert len(evidence["checkpoint_stalls_seconds"]) >= 2
    assert sum(evidence["time_shares"].values()) == pytest.approx(1)
    assert [points[-1][0] for points in evidence["history"][0]["curves"].values()] == [46] * 8
    for rank in range(2):
        with gzip.open(folder / f"profile/attempt-1-rank-{rank}.json.gz", "rt") as trace:
            traced = {event.get("name") for event in json.load(trace)["traceEvents"]}
        assert {"step 30", "step 31", "aten::convolution"} <= traced
        assert "step 32" not in traced
    values = EventAccumulator(str(folder / "tensorboard"))
    values.Reload()
    assert [event.step for event in values.Scalars("loss")] == [10, 20, 30, 40, 46]
    assert [event.step for event in values.Scalars("accuracy")] == [23, 46]
    assert "time after the first step: data " in run.text()
    assert "to train faster: " in run.text()
