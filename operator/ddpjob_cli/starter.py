"""The commented job file that `ddpjob init` writes. Pure."""

from dataclasses import dataclass

from ddpjob_operator.api.names import API_VERSION, KIND

#: Stands for an image that nobody has named.
PLACEHOLDER = "registry.example.com/ml/train:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the user wants. Either `script` or `recipe` is set."""

    name: str
    nodes: int
    gpus_per_node: int
    script: str
    recipe: str
    image: str


def starter_file(answers: Answers, path: str = "ddpjob.yaml") -> str:
    """The file, which passes `ddpjob validate`; its comments name it by `path`."""
    steps = {
        f"ddpjob validate {path}": "check it without a cluster",
        f"ddpjob run {path} --local": "run it on this machine, each pod as a process",
        f"ddpjob run {path}": "run it on the cluster and follow it",
    }
    width = max(map(len, steps))
    listed = "\n".join(f"#   {step:<{width}}  {meaning}" for step, meaning in steps.items())
    return f"""\
# A distributed PyTorch training. Next steps:
{listed}
apiVersion: {API_VERSION}
kind: {KIND}
metadata:
  {_field("name", answers.name)}
spec:
  # Each node runs one pod. All pods start, restart and end together.
  nodes: {answers.nodes}
{_gpus(answers)}
{_program(answers)}
  # Resources of each pod. GPUs come from gpusPerNode.
  resources:
    requests: {{cpu: {_cpus(answers)}, memory: {_memory(answers)}Gi}}
    limits: {{memory: {2 * _memory(answers)}Gi}}

  # Without it, training starts again at step 0 after a restart. All pods must be able to mount the volume. Instead of a
  # volume, uri: s3://bucket/prefix stores checkpoints in an object store, with its credentials in env.
  # checkpoint:
  #   volume: {{persistentVolumeClaim: {{claimName: checkpoints}}}}

  # Training data, mounted read-only at /data.
  # data:
  #   volume: {{persistentVolumeClaim: {{claimName: data, readOnly: true}}}}

  # Failures of the program count against maxRestarts; lost nodes, evictions and preemptions do not.
{_restart(answers)}
  # Wait in this queue of Kueue or Volcano until the whole job fits.
  # scheduling: {{queueName: team-a}}

  # Fail if the nodes are not free within a day. Without it, the job waits.
  # deadlines: {{queueSeconds: 86400}}
"""


def _gpus(answers: Answers) -> str:
    if not answers.gpus_per_node:
        return "  # gpusPerNode: 4     # without it, the job trains on CPUs, with one rank on each node\n"
    return f"  # One rank for each GPU.\n  gpusPerNode: {answers.gpus_per_node}\n"


def _program(answers: Answers) -> str:
    if answers.recipe:
        return f"  # The built-in trainer. Everything but the recipe has a default.\n  trainer:\n    {_field('recipe', answers.recipe)}\n    # epochs: 5\n"
    launcher = "torchrun" if answers.gpus_per_node > 1 else "python"
    return (
        f"  {_field('image', answers.image or PLACEHOLDER)}{'' if answers.image not in ('', PLACEHOLDER) else '  # replace it by yours'}\n"
        f"  # No shell: each argument is one element. torchrun needs no flags.\n"
        f"  {_field('command', [launcher, answers.script])}\n"
    )


def _field(name: str, value: str | list[str]) -> str:
    """A field with its value, which is quoted where YAML would read something else."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return f"{name}: {text.removesuffix('...' + chr(10)).strip()}"


def _restart(answers: Answers) -> str:
    if not answers.recipe:
        return "  # restart: {maxRestarts: 3, windowSeconds: 3600}\n"
    return (
        "  # With inPlace, all ranks start again within their pods first, without losing a step.\n"
        "  # restart: {maxRestarts: 3, windowSeconds: 3600, inPlace: true}\n"
    )


def _cpus(answers: Answers) -> int:
    return max(1, 4 * answers.gpus_per_node)


def _memory(answers: Answers) -> int:
    return max(1, 16 * answers.gpus_per_node)
