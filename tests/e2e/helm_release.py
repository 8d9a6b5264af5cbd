"""The release that the end-to-end tests and `make demo-cluster` install, and helm to do it with."""

import subprocess
from pathlib import Path

import testbed
from testbed import images, tools

REPOSITORY = Path(__file__).parents[2]
RELEASE, SYSTEM_NAMESPACE = "ddpjob-operator", "ddpjob-system"


class Helm:
    """Call it with helm's own arguments."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = [str(tools.path("helm")), f"--kubeconfig={kubeconfig}"]

    def __call__(self, *arguments: str, timeout_seconds: float = 360) -> str:
        """Run helm in the operator's namespace and give what it printed.

        Raises:
            RuntimeError: with helm's words, if it failed.
        """
        command = [*self._command, *arguments, f"--namespace={SYSTEM_NAMESPACE}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout


def load_images(cluster: testbed.Cluster) -> list[str]:
    """Build both images, put them on every node, and give the arguments that make the chart use them."""
    values = []
    for target, key in (("operator", "image"), ("trainer", "trainer.image")):
        image = images.build(target)
        images.load(image, cluster)
        repository, tag = image.name.rsplit(":", 1)
        values += ["--set", f"{key}.repository={repository}", "--set-string", f"{key}.tag={tag}"]
    return values


def install(helm: Helm, image_values: list[str]) -> str:
    """Install the operator as the README says; gives the chart's notes."""
    chart = str(REPOSITORY / "charts/ddpjob-operator")
    return helm("upgrade", "--install", RELEASE, chart, "--create-namespace", "--wait", "--timeout=180s", *image_values)
