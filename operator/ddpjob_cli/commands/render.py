"""`ddpjob render`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ddpjob_cli.options import Output
from ddpjob_operator.api.names import ProviderName

#: A placeholder for the image that the operator is configured with, which only a cluster knows.
_TRAINER_IMAGE = "trainer-image-of-the-operator"


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with one DDPJob", show_default=False)],
    pods: Annotated[
        bool, typer.Option("--pods", help="Show the Service, the NetworkPolicy and the pods of attempt 1")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(help="With --pods: only this node rank", min=0, show_default=False)
    ] = None,
    provider: Annotated[
        ProviderName, typer.Option(help="With --pods: the scheduling provider of the operator")
    ] = ProviderName.NONE,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Set a field of the spec, such as nodes=4", show_default=False)
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Format")] = Output.YAML,
) -> None:
    """Show a job with its defaults, or the pods that the operator would create for it, without a cluster.

    [bold]Examples[/bold]

      ddpjob render ddpjob.yaml --set nodes=4

      ddpjob render ddpjob.yaml --pods --rank 0
    """
    from ddpjob_cli.manifest import read_manifest
    from ddpjob_cli.output import print_objects

    manifest = read_manifest(file, settings=settings or ())
    if pods or rank is not None:
        bodies = objects_of(manifest.namespace, manifest.name, manifest.body, rank, provider)
    else:
        spec = manifest.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
        bodies = [{**manifest.body, "spec": spec}]
    print_objects(bodies, output, single=len(bodies) == 1)


def objects_of(namespace: str, name: str, body: Any, rank: int | None, setting: ProviderName) -> list[Any]:
    """The Service, the NetworkPolicy and the pods of the first attempt, as the operator creates them; only the pod of a rank if one is given.

    Raises:
        ValueError: the job has no such rank.
    """
    from ddpjob_operator.core.actions import CreateObject
    from ddpjob_operator.core.model import Observed
    from ddpjob_operator.core.records import job_of
    from ddpjob_operator.core.render.network_policy import ensure_network_policy
    from ddpjob_operator.core.render.pods import create_pod
    from ddpjob_operator.core.render.service import ensure_service
    from ddpjob_operator.core.situation import situation_of
    from ddpjob_operator.scheduling.discovery import newest

    metadata = {**body["metadata"], "namespace": namespace, "uid": "uid-of-the-job", "resourceVersion": "0"}
    job = job_of({**body, "metadata": metadata})
    spec = job.spec
    assert spec is not None, "the manifest has been validated"
    if rank is not None and rank >= spec.nodes:
        raise ValueError(f"--rank {rank}: {name} has the node ranks 0 to {spec.nodes - 1}")
    seen = Observed(job=job, makes_network_policies=True)
    provider = situation_of(seen, spec, 0.0, newest(setting)).provider
    image = spec.image or _TRAINER_IMAGE
    pods = [create_pod(job, spec, image, number, provider=provider).manifest for number in range(spec.nodes)]
    needed = (
        *ensure_service(job, spec, None),
        *ensure_network_policy(seen, spec),
        *provider.before_pods(seen, spec, pods[0].render),
    )
    objects = [action.body for action in needed if isinstance(action, CreateObject)]
    rendered = [pod.render() for pod in (pods if rank is None else [pods[rank]])]
    return rendered if rank is not None else [*objects, *rendered]
