#!/bin/sh
# Package the chart for a release, with both images pinned by digest:
#   charts/package.sh PREFIX OPERATOR_DIGEST TRAINER_DIGEST FOLDER
# PREFIX is the registry and path that the images were pushed to; the digests (sha256:...) are those that the registry
# reported. HELM names another helm than the one on PATH, DDPJOB_REPOSITORY_URL the public address of the repository.
set -eu
prefix=$1 operator=$2 trainer=$3 folder=$4
here=$(cd "$(dirname "$0")" && pwd)
copy=$(mktemp -d)
trap 'rm -r "$copy"' EXIT
cp -R "$here/ddpjob-operator" "$copy/ddpjob-operator"
# The first empty digest of values.yaml is the operator's, the second one the trainer's.
awk -v prefix="$prefix" -v first="$operator" -v second="$trainer" '
    /^imagePrefix: / { $0 = "imagePrefix: " prefix }
    /^ *digest: ""$/ { sub(/""/, found++ ? second : first) }
    { print }
' "$here/ddpjob-operator/values.yaml" > "$copy/ddpjob-operator/values.yaml"
if [ -n "${DDPJOB_REPOSITORY_URL:-}" ]; then
    printf 'home: %s\nsources: [%s]\n' "$DDPJOB_REPOSITORY_URL" "$DDPJOB_REPOSITORY_URL" >> "$copy/ddpjob-operator/Chart.yaml"
fi
"${HELM:-helm}" package "$copy/ddpjob-operator" --destination "$folder"
