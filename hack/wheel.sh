#!/bin/sh
# Build the wheel of the command and the Python client for a release: hack/wheel.sh FOLDER
# The metadata names DDPJOB_REPOSITORY_URL, the public address of the repository, which a checkout does not know.
# setuptools has the version and the hash of requirements/dev.lock. PYTHON names another Python than python3.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

mkdir "$work/source"
cp -R pyproject.toml README.md LICENSE operator trainer "$work/source"
if [ -n "${DDPJOB_REPOSITORY_URL:-}" ]; then
    cat >> "$work/source/pyproject.toml" <<END

[project.urls]
Source = "$DDPJOB_REPOSITORY_URL"
Documentation = "$DDPJOB_REPOSITORY_URL/tree/main/docs"
Changelog = "$DDPJOB_REPOSITORY_URL/blob/main/CHANGELOG.md"
Issues = "$DDPJOB_REPOSITORY_URL/issues"
END
fi

sed -n '/^setuptools==/,/# via/p' requirements/dev.lock > "$work/setuptools.lock"
"${PYTHON:-python3}" -m venv "$work/venv"
pip="$work/venv/bin/pip --quiet --disable-pip-version-check"
$pip install --no-deps --require-hashes --requirement "$work/setuptools.lock"
$pip wheel --no-deps --no-build-isolation --wheel-dir "$folder" "$work/source"
