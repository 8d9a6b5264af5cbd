"""Checkpoints in Azure Blob Storage: Azurite, a server that speaks its protocol, which npm installs once into the cache."""

import base64
import hashlib
import hmac
import http.client
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

import pytest

from ddpjob_measure.processes import free_port
from ddpjob_ranks import contract
from ddpjob_session.checkpoints.claim import Fenced
from ddpjob_session.checkpoints.folder import CheckpointFolder, from_environment
from ddpjob_session.checkpoints.object_store import PART_BYTES, ObjectStorage
from support.processes import DEADLINE_SECONDS
from testbed import paths, wait_for
from testbed.locks import exclusive

#: The newest version that runs with Node 20. With all packages that it needs it takes 186 MB.
VERSION = "3.35.0"
#: Azurite's own, which its documentation names.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "checkpoints"

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def program() -> Path:
    """The server. Needs npm and Node."""
    folder = paths.cache() / f"azurite-{VERSION}"
    with exclusive(folder.with_name(folder.name + ".lock")):
        if not folder.exists():
            unfinished = folder.with_name(folder.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            install = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional")
            subprocess.run([*install, "--prefix", unfinished, f"azurite@{VERSION}"], check=True, timeout=600)
            unfinished.rename(folder)
    return folder / "node_modules/.bin/azurite-blob"


@pytest.fixture
def environ(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What a job's pods have, with a server that has one container."""
    port = free_port()
    options = ["--blobPort", str(port), "--location", str(tmp_path), "--silent", "--skipApiVersionCheck"]
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
        try:
            wait_for("a container in Azurite", lambda: created(port), seconds=DEADLINE_SECONDS)
            for name, value in {
                "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": KEY,
                "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
            }.items():
                monkeypatch.setenv(name, value)
            yield {contract.DDPJOB_CHECKPOINT_URI: f"az://{CONTAINER}/team/job", contract.DDPJOB_UID: "u1"}
        finally:
            server.kill()


def created(port: int) -> bool:
    """Whether the container exists, which is asked to be made; the request is signed with the key of the account."""
    path, date = f"/{ACCOUNT}/{CONTAINER}?restype=container", formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT\n" + 11 * "\n" + named + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    signed = {**headers, "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"}
    with suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("PUT", path, headers={**signed, "Content-Length": "0"})
        return connection.getresponse().status in {201, 409}
    return False


def opened(environ: dict[str, str], *, attempt: int) -> CheckpointFolder:
    """The checkpoints, as an attempt takes them."""
    found = from_environment({**environ, contract.DDPJOB_ATTEMPT: str(attempt)}, keep=2, report=print)
    assert found is not None
    found.open()
    return found


def test_checkpoints_are_committed_fenced_and_found_again(environ: dict[str, str]) -> None:
    first = opened(environ, attempt=1)
    assert isinstance(first.storage, ObjectStorage)
    assert first.storage.conditional, "the claim is taken by conditional writes"
    content = bytes(range(256)) * (PART_BYTES // 256 * 5 // 2)  # two parts and a half
    for step in (5, 10, 15):
        first.save(step, lambda file: file.write(content))
    assert len(first.storage.names()) == 1 + 2 * 2, "the claim, and two checkpoints of two files"

    second = opened(environ, attempt=2)
    found = second.load_newest()
    assert found is not None
    assert (found[0].step, bytes(found[1])) == (15, content)
    with pytest.raises(Fenced):
        first.save(20, lambda file: file.write(content))
    second.save(20, lambda file: file.write(content[:100]))
    found = second.load_newest()
    assert found is not None
    assert (found[0].step, found[0].attempt, bytes(found[1])) == (20, 2, content[:100])


def test_of_two_writers_that_have_seen_the_same_version_one_is_refused(environ: dict[str, str]) -> None:
    storage = opened(environ, attempt=1).storage
    assert storage.replace("one", b"1", None)
    assert not storage.replace("one", b"2", None)
    seen = storage.look("one")
    assert seen is not None
    assert storage.replace("one", b"3", seen[1])
    assert not storage.replace("one", b"4", seen[1])
    newest = storage.look("one")
    assert newest is not None
    assert newest[0] == b"3"
    storage.delete("one")
    assert storage.look("one") is None
