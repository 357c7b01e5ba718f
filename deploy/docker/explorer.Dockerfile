# The explorer's image, for NVIDIA GPUs or, with VARIANT=cpu, for processors:
#   docker build -f deploy/docker/explorer.Dockerfile -t trinity-explorer:gpu .
#   docker build -f deploy/docker/explorer.Dockerfile -t trinity-explorer:cpu --build-arg VARIANT=cpu \
#       --build-arg PIP_EXTRA_INDEX_URL=<index of PyTorch's CPU builds> .
# CUDA's libraries are packages of the lock; the host brings the driver and NVIDIA's container toolkit.
FROM python:3.11-slim-bookworm AS build
ARG VARIANT=gpu
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY deploy/docker/install.sh /install.sh
COPY requirements/explorer-${VARIANT}.lock /locks/
COPY requirements/build.lock requirements/install_locked.sh /locks/
COPY requirements/torchvision_beside_cpu_torch.py /locks/
COPY pyproject.toml ./
COPY trinity trinity
COPY services/__init__.py services/
COPY services/explorer services/explorer
RUN /install.sh "/locks/explorer-${VARIANT}.lock" /venv

FROM python:3.11-slim-bookworm
# vLLM's kernels are compiled at the start, for which it wants a compiler; numa is the CPU build's.
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/*
RUN install -d -m 1777 /cache
COPY --from=build /venv /venv
# Caches and bytecode go where a container with a read-only root may write.
# torch 2.11 asks for the name of the user, whose number no file here knows.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX=/tmp/pycache HOME=/tmp HF_HOME=/cache/huggingface \
    USER=trinity
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-P", "-m", "services.explorer"]
