"""Checkpoints in an object store. The store is in memory.

`tests/processes/trainer/test_checkpoints_in_s3.py` runs trainings with a real S3 server.
"""

import sys
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("obstore", reason="ddpjob[s3] is not installed")

import obstore
from obstore import exceptions
from obstore.store import MemoryStore

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints.claim import CLAIM, Claim, Fenced, Owner
from ddpjob_session.checkpoints.folder import CheckpointFolder, from_environment, read_anywhere
from ddpjob_session.checkpoints.object_store import ObjectStorage
from ddpjob_session.checkpoints.storage import ChecksummedFile, UnavailableError
from support.saved_states import newest, save


def storage(store: MemoryStore | None = None) -> ObjectStorage:
    return ObjectStorage(location="s3://bucket/job", store=store or MemoryStore(), report=lambda _: None)


def attempt(number: int, place: ObjectStorage, *, uid: str = "u1", keep: int = 3) -> CheckpointFolder:
    """The checkpoints as an attempt opens them."""
    owner = Owner(uid=uid, attempt=number)
    opened = CheckpointFolder(claim=Claim(storage=place, owner=owner), keep=keep, report=lambda _: None)
    opened.open()
    return opened


def test_the_newest_checkpoint_is_loaded_and_older_ones_are_removed():
    place = storage()
    checkpoints = attempt(1, place, keep=2)
    obstore.put(place.store, "below/step-0000000099-attempt-1-u1.json", b"of a prefix below this one")
    for step in (8, 9, 10):
        save(checkpoints, step, b"%d" % step)
    assert newest(attempt(2, place)) == (10, b"10")
    stems = ("step-0000000009-attempt-1-u1", "step-0000000010-attempt-1-u1")
    assert place.names() == {CLAIM, *(f"{stem}.{suffix}" for stem in stems for suffix in ("pt", "json"))}


def test_an_object_of_several_parts_is_read_and_written_in_parts():
    place = storage()
    content = bytes(range(256)) * (270 * 1024)  # 4 parts and a half
    looks: list[int] = []
    written = place.write("state", lambda file: [file.write(content[:100]), file.write(content[100:])])
    read, sha256 = place.read("state", lambda: looks.append(1))
    assert (bytes(read), sha256, len(looks)) == (content, written.sha256, 2)


@pytest.mark.parametrize("suffix", ["pt", "json"])
def test_a_checkpoint_with_a_missing_object_is_replaced_by_the_one_before(suffix):
    place = storage()
    checkpoints = attempt(1, place)
    save(checkpoints, 1, b"one")
    save(checkpoints, 2, b"two")
    obstore.delete(place.store, f"step-0000000002-attempt-1-u1.{suffix}")
    assert newest(attempt(2, place)) == (1, b"one")


def test_the_memory_of_a_piece_can_be_used_again_at_once():
    place, piece = storage(), bytearray(b"first")

    def write(file: ChecksummedFile) -> None:
        file.write(memoryview(piece))
        piece[:] = b"other"
        file.write(memoryview(piece))

    place.write("state", write)
    assert bytes(place.read("state")[0]) == b"firstother"


def test_a_failed_upload_leaves_no_object():
    place = storage()
    checkpoints = attempt(1, place)
    save(checkpoints, 1, b"one")
    before = place.names()

    def fails(file: ChecksummedFile) -> None:
        file.write(b"half")
        raise MemoryError

    with pytest.raises(MemoryError):
        checkpoints.save(2, fails)
    assert place.names() == before


@pytest.mark.parametrize("claimed_before", [False, True])
def test_of_two_attempts_that_read_the_claim_at_the_same_moment_only_one_takes_it(claimed_before):
    place = storage()
    if claimed_before:
        attempt(1, place)
    older, newer = (Claim(storage=place, owner=Owner(uid="u1", attempt=number)) for number in (2, 3))
    _, version = older._read()
    newer.take()
    assert not place.replace(CLAIM, b"{}", version), "it is not the claim that was read"
    with pytest.raises(Fenced):
        older.take()
    newer.confirm()


def test_a_store_without_conditional_writes_is_reported_and_used(monkeypatch):
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *args, **_: put(*args))
    reports: list[str] = []
    place = storage()
    place.report = reports.append
    late = attempt(1, place)
    assert "does not support conditional writes" in reports[0]
    attempt(2, place)
    with pytest.raises(Fenced):
        save(late, 1, b"late")


def test_an_outage_while_the_store_is_tried_is_no_lack_of_conditional_writes(monkeypatch):
    put = obstore.put

    def fails_later(*args, mode="overwrite", **_):
        if mode != "overwrite":
            raise exceptions.GenericError(answer)
        return put(*args)

    monkeypatch.setattr(obstore, "put", fails_later)
    place = storage()
    answer = "status code: 503 Slow Down"
    with pytest.raises(UnavailableError, match="503 Slow Down"):
        place.open()
    answer = "status code: 501 Not Implemented: <Code>NotImplemented</Code>"
    place.open()
    assert not place.conditional


def test_two_attempts_that_start_at_the_same_moment_both_find_conditional_writes(monkeypatch):
    put, place, other = obstore.put, storage(), list[Any]()

    def interrupted(*args, mode="overwrite", **named):
        if mode != "overwrite" and not other:
            other.append(ObjectStorage(location="s3://bucket/job", store=place.store))
            other[0].open()  # tries the store and removes its object
        return put(*args, mode=mode, **named)

    monkeypatch.setattr(obstore, "put", interrupted)
    place.open()
    assert place.conditional
    assert other[0].conditional


@pytest.mark.parametrize(
    ("error", "reached", "expected", "text"),
    [
        (exceptions.PermissionDeniedError("status code: 403 Forbidden: <Code>AccessDenied</Code>"), False, ConfigError, "403 Forbidden, AccessDenied; set the credentials"),
        (exceptions.PermissionDeniedError("status code: 403 Forbidden: <Code>ExpiredToken</Code>"), True, PermissionError, "403 Forbidden, ExpiredToken"),
        (exceptions.GenericError("Error performing PUT http://169.254.169.254/latest: timeout"), False, ConfigError, "no credentials are set"),
        (exceptions.GenericError("Error performing PUT http://s3:9000/b/x in 2s, after 10 retries  - HTTP error: error sending request\nmore"), True, UnavailableError, r"^s3://bucket/job: no answer from http://s3:9000 \(error sending request\)$"),
        (exceptions.GenericError("status code: 503 Slow Down"), True, UnavailableError, "503 Slow Down"),
        (exceptions.GenericError("status code: 400 Bad Request: <Code>EntityTooLarge</Code>"), True, OSError, "400 Bad Request, EntityTooLarge"),
    ],
)  # fmt: skip
def test_errors_of_the_client_are_those_of_a_file_system(monkeypatch, error, reached, expected, text):
    place = storage()
    place.reached = reached
    monkeypatch.setattr(obstore, "put", Mock(side_effect=error))
    with pytest.raises(Exception, match=text) as caught:
        place.replace(CLAIM, b"", None)
    assert type(caught.value) is expected
    assert "more" not in str(caught.value)


def test_a_missing_bucket_is_refused_with_what_to_do(monkeypatch):
    error = exceptions.NotFoundError("status code: 404 Not Found: <Code>NoSuchBucket</Code>")
    monkeypatch.setattr(obstore, "put", Mock(side_effect=error))
    with pytest.raises(ConfigError, match="404 Not Found, NoSuchBucket; create the bucket, or correct the URI"):
        storage().open()


def test_access_that_is_lost_later_is_no_error_of_the_configuration(monkeypatch):
    place = storage()
    place.open()

    error = exceptions.PermissionDeniedError("status code: 403 Forbidden: <Code>ExpiredToken</Code>")
    monkeypatch.setattr(obstore, "put", Mock(side_effect=error))
    with pytest.raises(PermissionError):
        place.replace(CLAIM, b"", None)


def test_a_uri_that_cannot_be_used_is_refused(monkeypatch):
    for uri in ("ftp://server/folder", "s3://"):
        with pytest.raises(ConfigError, match=f"{uri}.*expected s3://, gs:// or az://, bucket and prefix"):
            read_anywhere(f"{uri}/model.safetensors", print)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "ddpjob_session.checkpoints.object_store")
    with pytest.raises(ConfigError, match=r"s3://bucket: .*obstore, which is not installed; pip install obstore"):
        from_environment({contract.DDPJOB_CHECKPOINT_URI: "s3://bucket"}, keep=1, report=print)
