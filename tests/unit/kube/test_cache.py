"""Versions reach a cache late, twice and out of order, and it never goes back."""

from collections.abc import AsyncIterator
from typing import Any

from ddpjob_operator.kopf_adapter import JobFeed
from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.transport.client import Page
from ddpjob_operator.transport.resources import PODS


def body(name: str, version: int, uid: str = "u1", *, label: str = "") -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": {"job": label}}}


def parse(body: Any, old: str | None) -> str:
    if body["metadata"]["labels"]["job"] == "stranger":
        raise ValueError("not ours")
    return f"{body['metadata']['uid']}@{body['metadata']['resourceVersion']} after {old}"


class Changes(list[tuple[str | None, str | None]]):
    def note(self, _: str, old: str | None, new: str | None) -> None:
        self.append((old, new))


def cache() -> tuple[Cache[str], Changes]:
    changes = Changes()
    return Cache[str](PODS, "", parse, changes.note), changes


def test_an_older_version_changes_nothing_and_versions_compare_as_numbers() -> None:
    pods, changes = cache()
    assert [pods.put(body("a", version)) for version in (9, 8, 9)] == [True, False, False]
    assert pods.get("ns", "a") == "u1@9 after None"
    assert len(changes) == 1
    assert pods.put(body("a", 10))


def test_a_record_is_parsed_with_the_one_before_it_but_not_with_that_of_another_object() -> None:
    pods, _ = cache()
    pods.put(body("a", 1))
    pods.put(body("a", 2))
    assert pods.get("ns", "a") == "u1@2 after u1@1 after None"
    pods.put(body("a", 3, "u2"))
    assert pods.get("ns", "a") == "u2@3 after None"


def test_the_deletion_of_an_earlier_object_of_the_same_name_removes_nothing() -> None:
    pods, _ = cache()
    pods.put(body("a", 3, "u2"))
    assert not pods.remove("ns", "a", uid="u1")
    assert pods.remove("ns", "a", uid="u2")
    assert len(pods) == 0


def test_an_object_that_stops_being_ours_is_dropped() -> None:
    pods, changes = cache()
    pods.put(body("a", 1))
    pods.put(body("a", 2, label="stranger"))
    assert pods.get("ns", "a") is None
    assert changes[-1] == ("u1@1 after None", None)


def test_the_answer_to_a_write_does_not_restore_a_deleted_object() -> None:
    pods, _ = cache()
    pods.put_answer(body("a", 5))
    assert pods.get("ns", "a") is None
    pods.put(body("a", 5, "u2"))
    pods.put_answer(body("a", 6, "u1"))
    assert pods.get("ns", "a") == "u2@5 after None"
    pods.put_answer(body("a", 7, "u2"))
    assert pods.get("ns", "a") == "u2@7 after u2@5 after None"


class Lister:
    """Two pages of one list; `between` happens while the second is on its way."""

    def __init__(self, first: list[Any], second: list[Any], version: int, between: Any = lambda: None) -> None:
        self.pages_given, self.version, self.between = (first, second), version, between

    async def pages(self, *_: object) -> AsyncIterator[Page]:
        yield Page(items=self.pages_given[0], resource_version=str(self.version))
        self.between()
        yield Page(items=self.pages_given[1], resource_version=str(self.version))

    everything = pages


async def refresh(pods: Cache[str], lister: Lister, **narrow: Any) -> tuple[str, int]:
    return await pods.refresh(lister, None, **narrow)  # type: ignore[arg-type]  # pages is all it uses


async def test_an_object_that_a_list_lacks_is_removed() -> None:
    pods, changes = cache()
    pods.put(body("a", 1))
    pods.put(body("b", 2, "u2"))
    assert await refresh(pods, Lister([body("b", 2, "u2")], [], 5)) == ("5", 1)
    assert pods.get("ns", "a") is None
    assert pods.get("ns", "b") is not None
    assert changes[-1] == ("u1@1 after None", None)


async def test_an_object_that_was_created_after_the_list_is_kept() -> None:
    pods, _ = cache()
    lister = Lister([], [], 5, between=lambda: pods.put(body("new", 6)))
    await refresh(pods, lister)
    assert pods.get("ns", "new") is not None


async def test_an_object_that_was_deleted_during_a_list_is_not_restored() -> None:
    pods, _ = cache()
    pods.put(body("a", 1))
    lister = Lister([], [body("a", 1)], 5, between=lambda: pods.remove("ns", "a", uid="u1"))
    await refresh(pods, lister)
    assert pods.get("ns", "a") is None


async def test_a_narrow_list_removes_nothing_that_it_does_not_cover() -> None:
    pods, _ = cache()
    pods.put(body("a", 1, "u1"))
    pods.put(body("b", 2, "u2"))
    await refresh(pods, Lister([], [], 5), labels="x=y", covers=lambda record: record.startswith("u1"))
    assert pods.get("ns", "a") is None
    assert pods.get("ns", "b") is not None


def test_kopf_is_silent_only_while_a_known_version_is_due() -> None:
    jobs, _ = cache()
    feed = JobFeed(jobs)
    assert feed.silent_seconds() == 0
    feed.take("ADDED", body("a", 1))
    assert feed.silent_seconds() == 0
    jobs.put(body("a", 2))  # by an audit or an own write
    feed.silent_seconds()
    assert feed.silent_seconds() > 0
    feed.take("MODIFIED", body("a", 2))
    assert feed.silent_seconds() == 0


def test_kopf_s_deletions_reach_the_cache() -> None:
    jobs, _ = cache()
    feed = JobFeed(jobs)
    feed.take(None, body("a", 1))
    feed.take("DELETED", body("a", 2))
    assert jobs.get("ns", "a") is None


def test_a_version_with_nothing_new_in_it_causes_no_reconcile() -> None:
    changes = Changes()
    slim = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["labels"]["job"]), changes.note)
    for version, label in ((1, "a"), (2, "a"), (3, "b")):
        assert slim.put(body("x", version, label=label))
    assert changes == [(None, "a"), ("a", "b")]
    assert not slim.put(body("x", 2, label="a"))


def test_nothing_is_due_of_a_namespace_whose_last_job_the_audit_has_dropped() -> None:
    jobs, _ = cache()
    feed = JobFeed(jobs)
    feed.take("ADDED", body("a", 1))
    jobs.put(body("a", 2))  # by an own write, and kopf never hears of the deletion that follows
    feed.silent_seconds()
    jobs.remove("ns", "a", uid="u1")
    assert feed.silent_seconds() == 0
