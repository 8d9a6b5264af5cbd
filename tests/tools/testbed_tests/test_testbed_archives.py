"""Image archives are read and written in the OCI layout; a foreign cluster takes none."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from testbed import ExternalCluster, UnsupportedError, oci


def archive_of(tmp_path: Path, **files: object) -> Path:
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        for name, document in files.items():
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(f"{name}.json")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive


def test_the_digest_of_a_written_image_depends_on_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    digests = set()
    for content in (b"one", b"two", b"two"):
        program.write_bytes(content)
        oci.write_program(tmp_path / "image.tar", name="example.invalid/program:1", program=program)
        image = oci.read(tmp_path / "image.tar")
        assert image.name == "example.invalid/program:1"
        digests.add(image.digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "no OCI archive"),
        ({"manifest": []}, "no OCI archive"),
        ({"index": {"manifests": []}}, "holds 0 images, expected 1"),
        ({"index": {"manifests": [{"digest": "sha256:1"}]}}, "names its image '', expected HOST/NAME:TAG"),
    ],
)
def test_an_archive_without_exactly_one_named_image_is_refused(
    tmp_path: Path, files: dict[str, object], complaint: str
) -> None:
    with pytest.raises(oci.ArchiveError, match=complaint):
        oci.read(archive_of(tmp_path, **files))


def test_a_missing_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(oci.ArchiveError, match="no OCI archive"):
        oci.read(tmp_path / "missing.tar")


def test_an_external_cluster_names_what_it_does_not_support(tmp_path: Path) -> None:
    foreign = ExternalCluster(tmp_path / "kubeconfig")
    with pytest.raises(UnsupportedError, match="cannot be loaded"):
        foreign.load_image(tmp_path / "image.tar")
    with pytest.raises(UnsupportedError, match="cannot be broken"):
        _ = foreign.nodes
