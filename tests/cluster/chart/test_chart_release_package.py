"""The chart of a release pulls both images by digest from the registry that it was packaged for, and names its repository."""

import os
import subprocess

from support import REPOSITORY
from support.chart_render import helm
from testbed import tools

OPERATOR, TRAINER = (f"sha256:{character * 64}" for character in "ab")


def test_the_packaged_chart_pins_both_images(tmp_path):
    subprocess.run(
        [REPOSITORY / "charts/package.sh", "registry.example.com/ml", OPERATOR, TRAINER, tmp_path],
        env={**os.environ, "HELM": str(tools.path("helm")), "DDPJOB_REPOSITORY_URL": "https://example.com/a/ddpjob"},
        timeout=60,
        check=True,
    )
    (package,) = tmp_path.glob("ddpjob-operator-*.tgz")

    rendered = helm("template", "x", package)

    assert f"image: registry.example.com/ml/operator@{OPERATOR}" in rendered
    assert f"--trainer-image=registry.example.com/ml/trainer@{TRAINER}" in rendered
    shown = helm("show", "chart", package)
    assert "home: https://example.com/a/ddpjob\n" in shown
    assert "sources:\n- https://example.com/a/ddpjob\n" in shown
