# The synchronizer's image: docker build -f deploy/docker/synchronizer.Dockerfile -t trinity-synchronizer .
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY deploy/docker/install.sh /install.sh
COPY requirements/synchronizer.lock /locks/
COPY requirements/build.lock requirements/install_locked.sh /locks/
COPY pyproject.toml ./
COPY trinity trinity
COPY services/__init__.py services/
COPY services/synchronizer services/synchronizer
RUN /install.sh /locks/synchronizer.lock /venv

FROM python:3.11-slim-bookworm
COPY --from=build /venv /venv
# Bytecode goes where a container with a read-only root may write.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX=/tmp/pycache
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-P", "-m", "services.synchronizer"]
