"""The keyed queue: at most once, never two workers on one key, later comes later."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from ddpjob_operator.kube.engine.workqueue import FARTHEST_SECONDS, LAST_RETRY_SECONDS, WorkQueue

A, B = ("ns", "a"), ("ns", "b")


@pytest.fixture
async def queue() -> WorkQueue:
    return WorkQueue(8)


async def take(queue: WorkQueue, seconds: float = 60.0) -> tuple[str, str]:
    return await asyncio.wait_for(queue.get(), seconds)


async def nothing_comes(queue: WorkQueue) -> bool:
    """Whether nothing comes for longer than anything is ever planned for."""
    try:
        await take(queue, 2 * FARTHEST_SECONDS)
    except TimeoutError:
        return True
    return False


async def test_a_key_added_twice_comes_once(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(A)
    queue.add(B)
    assert [await take(queue), await take(queue)] == [A, B]
    assert await nothing_comes(queue)


async def test_what_is_added_as_first_comes_first_and_once_however_often_it_was_added(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(B)
    queue.add(B, first=True)
    queue.add(B)
    assert [await take(queue), await take(queue)] == [B, A]
    queue.done(A)
    queue.done(B)
    assert len(queue) == 0
    assert await nothing_comes(queue)


async def test_a_key_that_became_urgent_while_in_work_comes_first_when_it_is_done(queue: WorkQueue) -> None:
    queue.add(A)
    assert await take(queue) == A
    queue.add(B)
    queue.add(A, first=True)
    queue.done(A)
    assert [await take(queue), await take(queue)] == [A, B]


async def test_urgency_ends_with_the_reconcile(queue: WorkQueue) -> None:
    queue.add(A, first=True)
    assert await take(queue) == A
    queue.done(A)
    queue.add(B)
    queue.add(A)
    assert [await take(queue), await take(queue)] == [B, A]


async def test_a_key_in_work_waits_until_it_is_done(queue: WorkQueue) -> None:
    queue.add(A)
    assert await take(queue) == A
    queue.add(A)
    assert await nothing_comes(queue)
    queue.done(A)
    assert await take(queue) == A
    queue.done(A)
    assert await nothing_comes(queue), "it was not added again"


async def test_two_waiting_workers_never_get_the_same_key(queue: WorkQueue) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(A)
    queue.add(A)
    done, waiting = await asyncio.wait(workers, timeout=60)
    assert len(done) == 1
    for task in waiting:
        task.cancel()


async def test_the_earlier_of_two_times_counts(queue: WorkQueue) -> None:
    queue.add_after(A, 30)
    queue.add_after(A, 2)
    queue.add_after(A, 60)
    assert await take(queue) == A
    queue.done(A)
    assert await nothing_comes(queue)


async def test_a_worker_that_waits_for_a_far_time_wakes_for_a_near_one(queue: WorkQueue) -> None:
    queue.add_after(A, 30)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add_after(B, 1)
    assert await asyncio.wait_for(worker, 2) == B


async def test_a_dropped_key_is_not_returned(queue: WorkQueue) -> None:
    queue.add_after(A, 1)
    queue.drop(A)
    assert await nothing_comes(queue)


async def test_retries_come_later_each_time_up_to_a_limit_and_begin_again_after_a_success(queue: WorkQueue) -> None:
    delays = [queue.retry(A) for _ in range(2000)]  # a delay that doubles overflows after a thousand
    assert delays[0] < 0.13
    assert delays[4] > 4 * delays[0]
    assert 0.7 * LAST_RETRY_SECONDS <= delays[-1] <= max(delays) <= LAST_RETRY_SECONDS * 1.25
    queue.reset_back_off(A)
    assert queue.retry(A) < 0.13


async def test_a_retry_is_not_earlier_than_the_server_asks(queue: WorkQueue) -> None:
    assert queue.retry(A, at_least_seconds=7.0) == pytest.approx(7.0)


async def test_metrics_of_the_queue_have_the_meaning_that_controller_runtime_gives_them(queue: WorkQueue) -> None:
    def sample(name: str) -> float:
        value = REGISTRY.get_sample_value(f"workqueue_{name}", {"name": "ddpjob", "controller": "ddpjob"})
        assert value is not None
        return value

    names = ["adds_total", "retries_total", "queue_duration_seconds_count", "work_duration_seconds_count"]
    before = [sample(name) for name in names]
    WorkQueue(1, "events").add(B)  # has metrics of its own
    queue.add(A)
    queue.add(A, first=True)
    queue.add(B)
    assert sample("depth") == 2
    await take(queue)
    queue.add(A)
    assert sample("longest_running_processor_seconds") > 0
    assert sample("unfinished_work_seconds") > 0
    queue.retry(A)
    queue.done(A)
    assert [sample(name) - then for name, then in zip(names, before, strict=True)] == [3, 1, 1, 1]
    assert sample("depth") == 2
    assert sample("longest_running_processor_seconds") == 0
    queue.drop(A)


async def test_a_queue_that_is_not_open_yet_takes_no_keys_and_begins_with_those_that_it_is_opened_with() -> None:
    """A standby knows all jobs, and nobody works on them: keys of jobs that came and went would stay for ever."""
    queue = WorkQueue(8, is_open=False)
    queue.add(A)
    assert len(queue) == 0
    queue.open([B])
    queue.add(A)
    assert [await take(queue), await take(queue)] == [B, A]
