"""The one part of the metadata that pyproject.toml cannot have: the repository's address, which the release knows."""

import os

from setuptools import setup

_ADDRESS = os.environ.get("DDPJOB_REPOSITORY_URL", "")
_PAGES = {"Source": "", "Documentation": "/tree/main/docs", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}

setup(project_urls={title: _ADDRESS + page for title, page in _PAGES.items()} if _ADDRESS else {})
