"""Gauges of the jobs that exist."""

from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import Condition, DDPJobStatus, Progress, TimeSpent
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.kube.job_gauges import job_gauges
from support.builders import NOW, job


def gauges(*jobs: Job, max_jobs: int = 0) -> dict[tuple[str, ...], float]:
    """The samples that are not 0, by the metric's name and the values of its labels."""
    samples = [sample for metric in job_gauges(jobs, max_jobs, NOW) for sample in metric.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples if sample.value}


def waiting(reason: str, seconds: float) -> Job:
    return job(DDPJobStatus(phase=Phase.PENDING, reason=reason, queued_since=rfc3339(NOW - seconds)))


def training(began: float, **progress: float) -> Job:
    time = TimeSpent(until=rfc3339(NOW), goodput_percent=87.5)
    status = DDPJobStatus(phase=Phase.RUNNING, start_time=rfc3339(began), time=time)
    return job(status.model_copy(update={"progress": Progress.model_validate({"step": 5, **progress})}))


def test_jobs_by_phase_and_what_waiting_gangs_wait_for() -> None:
    failed_spec = Condition(type="Stalled", status="True", reason="InvalidSpec", last_transition_time=rfc3339(NOW))
    stalled = job(DDPJobStatus(phase="Novel", conditions=[failed_spec]))
    gangs = waiting("Unschedulable", 20), waiting("Unschedulable", 60), waiting("Novel", 5)
    assert gauges(job(), stalled, *gangs) == {
        ("ddpjob_jobs", "New"): 1,
        ("ddpjob_jobs", "Other"): 1,
        ("ddpjob_jobs", "Pending"): 3,
        ("ddpjob_jobs_stalled",): 1,
        ("ddpjob_gangs_waiting", "Unschedulable"): 2,
        ("ddpjob_gangs_waiting", "Other"): 1,
        ("ddpjob_gangs_waiting_longest_seconds", "Unschedulable"): 60,
        ("ddpjob_gangs_waiting_longest_seconds", "Other"): 5,
    }


def test_single_jobs_have_gauges_only_where_they_are_switched_on() -> None:
    of = training(NOW, loss=0.25, etaSeconds=3900, totalSteps=10)
    assert not {sample for sample in gauges(of) if sample[0].startswith("ddpjob_job_")}
    found = gauges(of, max_jobs=1)
    assert {name: value for (name, *labels), value in found.items() if labels == ["default", "job"]} == {
        "ddpjob_job_step": 5,
        "ddpjob_job_total_steps": 10,
        "ddpjob_job_loss": 0.25,
        "ddpjob_job_eta_seconds": 3900,
        "ddpjob_job_goodput": 0.875,
    }


def test_the_number_of_jobs_with_gauges_is_bounded() -> None:
    found = gauges(*(training(NOW + second, loss=second) for second in range(5)), max_jobs=2)
    assert found["ddpjob_jobs_without_gauges",] == 3
    assert found["ddpjob_job_loss", "default", "job"] == 3  # All have one name here; the second one is written last.
