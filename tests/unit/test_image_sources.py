"""The builder of the tests hands over every file that the Dockerfile copies; docker has the whole checkout."""

import re

from support.images import REPOSITORY, SOURCES


def test_the_sources_of_the_images_are_what_the_dockerfile_copies() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
        if not source.startswith("$")
    }

    handed_over = {source for sources in SOURCES.values() for source in sources}
    assert copied <= handed_over
    assert all((REPOSITORY / source).exists() for source in handed_over)
