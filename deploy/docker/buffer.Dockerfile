# The buffer's image: docker build -f deploy/docker/buffer.Dockerfile -t trinity-buffer .
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY deploy/docker/install.sh /install.sh
COPY requirements/buffer.lock /locks/
COPY requirements/build.lock requirements/install_locked.sh /locks/
COPY pyproject.toml ./
COPY trinity trinity
COPY services/__init__.py services/
COPY services/buffer services/buffer
RUN /install.sh /locks/buffer.lock /venv

FROM python:3.11-slim-bookworm
RUN install -d -m 1777 /cache
COPY --from=build /venv /venv
# Caches and bytecode go where a container with a read-only root may write.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX=/tmp/pycache HOME=/tmp HF_HOME=/cache/huggingface
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-P", "-m", "services.buffer"]
