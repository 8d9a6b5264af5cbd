# The images of ddpjob, by target. PREFIX is the registry and path that the chart's value `imagePrefix` names:
#   docker build --target operator --tag $PREFIX/operator:0.1.0 .     the operator, without torch
#   docker build --target trainer --tag $PREFIX/trainer:0.1.0 .       the trainer, with torch and its CUDA libraries
#   docker build --target trainer-cpu --tag $PREFIX/trainer:0.1.0 .   the trainer for CPUs only, a third of the size
# BASE is any Debian-based image with Python >= 3.11 and its venv module. No step needs a compiler: the locks are installed
# from wheels. Dependencies come first and our code last, so a change of code rebuilds only two small layers.
# Neither program writes into the image at run time: any numeric user and a read-only root file system work.
ARG BASE=python:3.11-slim

# A separate venv, because Debian's Python is externally managed and is not called `python`. ddpjob.pth adds /opt/ddpjob,
# which holds our code, to its import path.
FROM ${BASE} AS venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN python3 -m venv --without-pip /opt/venv \
    && echo /opt/ddpjob > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ddpjob.pth"


FROM venv AS operator
COPY requirements/operator.lock /tmp/operator.lock
RUN python -m ensurepip \
    && python -m pip install --no-cache-dir --require-hashes --only-binary=:all: --requirement /tmp/operator.lock \
    && python -m pip uninstall --yes pip setuptools \
    && rm /tmp/operator.lock
# Of the trainer's packages, only the modules that it shares with the operator.
COPY trainer/ddpjob_ranks/__init__.py \
     trainer/ddpjob_ranks/contract.py \
     trainer/ddpjob_ranks/errors.py \
     trainer/ddpjob_ranks/limits.py \
     /opt/ddpjob/ddpjob_ranks/
COPY trainer/ddpjob_trainer/__init__.py \
     trainer/ddpjob_trainer/config.py \
     /opt/ddpjob/ddpjob_trainer/
COPY operator/ddpjob_operator /opt/ddpjob/ddpjob_operator
# Unchecked, because the files never change and the timestamps of a layer must not decide whether bytecode is used.
RUN chmod -R a+rX /opt/ddpjob \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/ddpjob
USER 65532:65532
ENTRYPOINT ["python", "-m", "ddpjob_operator"]


FROM venv AS trainer-code
COPY trainer/ddpjob_ranks /opt/ddpjob/ddpjob_ranks
COPY trainer/ddpjob_session /opt/ddpjob/ddpjob_session
COPY trainer/ddpjob_trainer /opt/ddpjob/ddpjob_trainer
COPY trainer/ddpjob_recipes /opt/ddpjob/ddpjob_recipes
COPY trainer/ddpjob /opt/ddpjob/ddpjob
RUN chmod -R a+rX /opt/ddpjob \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/ddpjob


# NVIDIA_VISIBLE_DEVICES is deliberately unset: the device plugin sets it, and a pod that requests no GPU sees none.
FROM venv AS trainer
# For torch.compile on GPUs: Triton compiles a small C launcher for each kernel at its first use, against the headers of this
# Python. This step runs as root and uses the package mirror of the base image.
RUN header="$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
    && apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && { test -e "$header" || apt-get install --yes --no-install-recommends libpython3-dev; } \
    && test -e "$header" \
    && rm -rf /var/lib/apt/lists/*
# The working directory of users' programs, writable for any user: relative paths such as snapshot.pt start here.
RUN mkdir --mode=1777 /workspace
WORKDIR /workspace
# Another lock, for other drivers or GPUs, and the package index that has its wheels (docs/how-to/gpus.md).
ARG TRAINER_LOCK=requirements/trainer.lock
ARG PIP_INDEX_URL
COPY ${TRAINER_LOCK} /tmp/trainer.lock
# pip stays in the image for images that are built on top of it.
RUN python -m ensurepip --default-pip \
    && python -m pip install --no-cache-dir --require-hashes --only-binary=:all: --requirement /tmp/trainer.lock \
    && rm /tmp/trainer.lock
COPY --from=trainer-code /opt/ddpjob /opt/ddpjob
USER 65532:65532
CMD ["python", "-m", "ddpjob_trainer", "--help"]


# The same without NVIDIA's libraries and Triton, for jobs on CPUs. `--no-deps`, because torch requires the packages that the
# lock leaves out; without_cuda.py says how torch loads without them. The compiler does not stay in the image.
FROM venv AS trainer-cpu
RUN mkdir --mode=1777 /workspace
WORKDIR /workspace
COPY requirements/trainer-cpu.lock requirements/without_cuda.py /tmp/
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && python -m ensurepip --default-pip \
    && python -m pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: --requirement /tmp/trainer-cpu.lock \
    && python /tmp/without_cuda.py \
    && apt-get purge --yes --auto-remove gcc libc6-dev \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /tmp/trainer-cpu.lock /tmp/without_cuda.py
COPY --from=trainer-code /opt/ddpjob /opt/ddpjob
USER 65532:65532
CMD ["python", "-m", "ddpjob_trainer", "--help"]
