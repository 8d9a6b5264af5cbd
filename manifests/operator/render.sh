#!/bin/sh
# Print operator.yaml: the chart with its defaults, as plain objects. HELM names another helm than the one on PATH.
set -eu
cd "$(dirname "$0")/../.."
rendered=$("${HELM:-helm}" template ddpjob-operator charts/ddpjob-operator \
    --namespace ddpjob-system --set crds.enabled=false --skip-tests)
echo "# Made from charts/ddpjob-operator by render.sh; edit the chart instead."
# What names Helm as the owner is left out.
printf '%s\n' "$rendered" | grep -Ev '^$|^# Source: |^ +helm.sh/chart: |^ +app.kubernetes.io/managed-by: '
