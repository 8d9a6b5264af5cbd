"""What a user can do about the commonest errors of programs: shown by `ddpjob explain` and in the troubleshooting page.

The classes of failures (`core/failure/classes.py`) say what follows from an end. These rows are about the message of the program's
exception or its last line, which is untrusted: a pattern takes time in proportion to the length of a message.
"""

import re
from dataclasses import dataclass
from typing import Final

from ddpjob_operator.api.names import Reason

_INSTALL = "where the program runs: in the image, or, for a local run, in the Python environment of `ddpjob`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One kind of error."""

    pattern: str
    """A regular expression that finds it in a message."""
    example: str
    """A message of a real program."""
    advice: str
    """One sentence or two, in Markdown."""


#: The first row that matches applies.
REMEDIES: Final = (
    Remedy(
        pattern=r"\\r['\u2019:]",
        example="bash: line 2: $'\\r': command not found",
        advice="Save the script with the line ends of Linux: `dos2unix SCRIPT`, or in git `*.sh text eol=lf` in"
        " `.gitattributes`.",
    ),
    Remedy(
        pattern=r"No module named ['\"]?\w",
        example="ModuleNotFoundError: No module named 'transformers'",
        advice=f"Install the package {_INSTALL}. A module of your own must be next to the script or in `PYTHONPATH`.",
    ),
    Remedy(
        pattern=r"ImportError: cannot import name",
        example="ImportError: cannot import name 'Trainer' from 'lightning'",
        advice=f"Install the version of the package that has this name, {_INSTALL}; no file of yours may have the package's name.",
    ),
    Remedy(
        pattern=r"(?:Syntax|Indentation|Tab)Error: ",
        example="SyntaxError: invalid syntax",
        advice="Correct the line that the traceback shows; the Python of the image may be older than yours.",
    ),
    Remedy(
        pattern=r"can't open file |cannot open \S+: No such file|sh: \S+: No such file",
        example="python: can't open file '/workspace/train.py': [Errno 2] No such file or directory",
        advice="Correct the path of the script in `command`: it must exist in each pod, by an absolute path or below the working"
        " directory. Copy the script into the image, mount it, or let `ddpjob run -- python SCRIPT` send it.",
    ),
    Remedy(
        pattern=r"command not found|sh: \d+: \S+: not found",
        example="bash: line 1: torchrun: command not found",
        advice="The image has no such program, or not in `PATH`: use its absolute path, `python -m MODULE`, or an"
        " image that contains it.",
    ),
    Remedy(
        pattern=r": error: (?:unrecognized arguments|argument |the following arguments)|No such option",
        example="train.py: error: unrecognized arguments: --lr x",
        advice="Correct the arguments behind the script in `command`: each is an item of its own, such as `[--lr,"
        " '0.1']`.",
    ),
    Remedy(
        pattern=r"EOFError: EOF when reading a line",
        example="EOFError: EOF when reading a line",
        advice="Ranks have no standard input: take what `input()` asks for from an argument or an environment"
        " variable.",
    ),
    Remedy(
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port:"
        " 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        advice="Set no port in the program: `init_process_group()` without `init_method` takes `MASTER_ADDR` and `MASTER_PORT`, which"
        " are set. Only rank 0 may listen there.",
    ),
    Remedy(
        pattern=r"NVIDIA driver|Torch not compiled with CUDA|No CUDA GPUs are available|no CUDA-capable device"
        r"|requires at least one CUDA device|no GPUs? found|found no GPU",
        example="RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        advice="Ask for GPUs by `gpusPerNode` (`--gpus`), with an image whose torch has CUDA; or train on CPUs: device `cpu` and the"
        " backend `gloo`.",
    ),
    Remedy(
        pattern=r"invalid device ordinal|Duplicate GPU detected",
        example="RuntimeError: CUDA error: invalid device ordinal",
        advice="Take the GPU by the rank in the node: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`; `RANK` counts over all"
        " nodes.",
    ),
    Remedy(
        pattern=r"no kernel image is available",
        example="RuntimeError: CUDA error: no kernel image is available for execution on the device",
        advice="The torch of the image was not built for this kind of GPU: use an image with a torch that supports it, or select other"
        " nodes in `template.spec.nodeSelector`.",
    ),
    Remedy(
        pattern=r"device-side assert|CUDA error: an illegal memory access",
        example="RuntimeError: CUDA error: device-side assert triggered",
        advice="Often an index is out of range, such as a label that is not below the number of classes. To see the line, run again with"
        " `--env CUDA_LAUNCH_BLOCKING=1`, or on CPUs.",
    ),
    Remedy(
        pattern=r"(?:Default|default) process group has not been initialized",
        example="ValueError: Default process group has not been initialized, please make sure to call"
        " init_process_group.",
        advice="Call `torch.distributed.init_process_group()` once at the start of each rank, before the model is"
        " wrapped.",
    ),
    Remedy(
        pattern=r"trying to initialize the default process group twice",
        example="ValueError: trying to initialize the default process group twice!",
        advice="Call `init_process_group()` once: a framework, or a session, may have done it already.",
    ),
    Remedy(
        pattern=r"Expected to have finished reduction in the prior iteration",
        example="RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        advice="Some parameters had no part in the loss: use them, or wrap the model with"
        " `find_unused_parameters=True`.",
    ),
    Remedy(
        pattern=r"mark a variable ready only once",
        example="RuntimeError: Expected to mark a variable ready only once.",
        advice="A parameter was used twice in one backward pass: call `torch.utils.checkpoint` with"
        " `use_reentrant=False`, or wrap the model with `static_graph=True`.",
    ),
    Remedy(
        pattern=r"expects same model across all ranks|appears not to match (?:sizes|strides) of the same param",
        example="RuntimeError: DDP expects same model across all ranks, but Rank 1 has 161 params, while rank 0 has"
        " inconsistent 0 params.",
        advice="Build the same model on each rank: nothing that differs between ranks, such as data or a checkpoint"
        " that only one rank finds, may decide on layers or on what is trained.",
    ),
    Remedy(
        pattern=r"mismatch between collectives",
        example="RuntimeError: Detected mismatch between collectives on ranks.",
        advice="Each rank must call the same collectives in the same order: look for `if rank == 0` around one, and"
        " for ranks with fewer batches.",
    ),
    Remedy(
        pattern=r"Cannot re-initialize CUDA in forked",
        example="RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you"
        " must use the 'spawn' start method",
        advice="Use no GPU before and in data-loader workers: move batches to the GPU in the training loop, or give"
        " `DataLoader` `multiprocessing_context='spawn'`.",
    ),
    Remedy(
        pattern=r"attempt has been made to start a new process",
        example="RuntimeError: An attempt has been made to start a new process before the current process has"
        " finished its bootstrapping phase.",
        advice="Start the training below `if __name__ == '__main__':`, because spawned processes import the script.",
    ),
    Remedy(
        pattern=r"start new thread|pthread_create failed|Resource temporarily unavailable",
        example="RuntimeError: can't start new thread",
        advice="The pod has as many processes and threads as its node allows (`podPidsLimit` of the kubelet): use"
        " fewer data-loader workers, and set `OMP_NUM_THREADS` in `env`.",
    ),
    Remedy(
        pattern=r"DataLoader worker \(pid",
        example="RuntimeError: DataLoader worker (pid 25902) is killed by signal: Segmentation fault.",
        advice="Run once with `num_workers=0`: the training then ends with the error itself.",
    ),
    Remedy(
        pattern=r"Failed to find C compiler",
        example="InductorError: RuntimeError: Failed to find C compiler.",
        advice="`torch.compile` needs a C compiler: use an image with gcc.",
    ),
    Remedy(
        pattern=r"ECC error|unspecified launch failure|GPU is lost|fallen off the bus",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        advice="The GPU reports a fault: ask whoever runs the cluster to look at the node that `ddpjob explain`"
        " names (`dmesg`, `nvidia-smi -q`).",
    ),
    Remedy(
        pattern=r"Expected all tensors to be on the same device",
        example="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0"
        " and cpu!",
        advice="Move model and batch to the same device, that of the rank: `torch.device('cuda',"
        " int(os.environ['LOCAL_RANK']))`.",
    ),
    Remedy(
        pattern=r"loading state_dict|Weights only load failed|PytorchStreamReader failed",
        example="RuntimeError: Error(s) in loading state_dict for ResNet:",
        advice="The file belongs to another model, is incomplete, or holds more than tensors (`weights_only`). To start from step 0,"
        " give the job another name or checkpoint directory. A file that is written under a temporary name and then renamed is"
        " never incomplete.",
    ),
    Remedy(
        pattern=r"num_nodes=\d+`? in Lightning|rank < size\. \d",
        example="ValueError: You set `devices=1` and `num_nodes=1` in Lightning, but the product (1 * 1) does not"
        " match the world size (2).",
        advice="Tell Lightning of all pods: `Trainer(num_nodes=int(os.environ['NNODES']), devices=N)`, with N ranks"
        " in each pod.",
    ),
    Remedy(
        pattern=r"Too many open files|received 0 items of ancdata",
        example="OSError: [Errno 24] Too many open files",
        advice="Call `torch.multiprocessing.set_sharing_strategy('file_system')`, use fewer data-loader workers, or"
        " close what is opened.",
    ),
    Remedy(
        pattern=r"No space left on device|MiB free",
        example="OSError: [Errno 28] No space left on device: '/checkpoints/step-100'",
        advice="Free space in the file system of the path that the message names, enlarge its volume, or keep fewer"
        " checkpoints.",
    ),
    Remedy(
        pattern=r"PermissionError: |Permission denied|Read-only file system",
        example="PermissionError: [Errno 13] Permission denied: '/opt/model/cache'",
        advice="Write to `/tmp`, or to the directory of `checkpoint` (`DDPJOB_CHECKPOINT_DIR`); or let the image run as its own user"
        " (`securityProfile`).",
    ),
    Remedy(
        pattern=r"FileNotFoundError: |NotADirectoryError: ",
        example="FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        advice="Each pod needs the file: mount it by `data.volume` at `/data`, or put it into the image, and use an"
        " absolute path.",
    ),
    Remedy(
        pattern=r"Name or service not known|Temporary failure in name resolution|getaddrinfo failed|NameResolutionError"
        r"|Connect(?:ion)?(?:Timeout|Error): |Max retries exceeded|URLError|LocalEntryNotFoundError"
        r"|We couldn't connect to",
        example="requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max"
        " retries exceeded",
        advice="Pods may have no way to that host: put data and models into the image or a volume beforehand, or set `HTTPS_PROXY` in"
        " `env`.",
    ),
    Remedy(
        pattern=r"429 Client|Too Many Requests",
        example="huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url:"
        " https://huggingface.co/api",
        advice="The host limits requests: let one rank download before the others (`torch.distributed.barrier()`),"
        " or put data and models into a volume.",
    ),
    Remedy(
        pattern=r"\b40[13] (?:Client|GET|PUT|POST)|Unauthorized|Forbidden|NoCredentialsError|Unable to locate credentials|AccessDenied"
        r"|GatedRepoError|gated repo"
        r"|api_key not configured",
        example="botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        advice="Give the program its credentials: a Secret in `env` by `valueFrom.secretKeyRef`, such as for `HF_TOKEN`,"
        " `WANDB_API_KEY` or `AWS_ACCESS_KEY_ID`.",
    ),
    Remedy(
        pattern=r"KeyError: '[A-Z][A-Z0-9_]+'$",
        example="KeyError: 'SLURM_PROCID'",
        advice="If it is an environment variable, set it by `env` or `--env NAME=VALUE`. For the process group `RANK`, `WORLD_SIZE`,"
        " `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT` are set.",
    ),
    Remedy(
        pattern=r"GLIBC\S* not found|cannot open shared object file|exec format error",
        example="ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        advice="The image does not fit: a library is missing or of another version, or it is built for another"
        " processor or another CUDA.",
    ),
)

#: The classes of failures whose message is the program's own.
OF_PROGRAMS: Final = frozenset(
    {Reason.PROGRAM_ERROR, Reason.BAD_COMMAND, Reason.BAD_CONFIG, Reason.COLLECTIVE_ERROR, Reason.INIT_FAILED}
)
#: Of a program that ended without a word.
SILENT: Final = (
    "The program printed nothing before it ended: look for `sys.exit` and `os._exit` in it, and at all of its log: `ddpjob logs NAME"
    " --failed`."
)
_MAX_LENGTH: Final = 4096
_PATTERNS: Final = tuple((re.compile(row.pattern), row) for row in REMEDIES)


def remedy_for(message: str) -> str:
    """What to do about the error of a program; empty for an unknown one."""
    return next((row.advice for pattern, row in _PATTERNS if pattern.search(message[:_MAX_LENGTH])), "")


def table() -> str:
    """All rows as a Markdown table."""
    rows = ["| error | what to do |", "| --- | --- |"]
    rows += (
        f"| `` {row.example} `` | {row.advice} |" if "`" in row.example else f"| `{row.example}` | {row.advice} |"
        for row in REMEDIES
    )
    return "\n".join(rows)
