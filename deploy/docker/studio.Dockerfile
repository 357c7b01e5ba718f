# Studio's image: docker build -f deploy/docker/studio.Dockerfile -t trinity-studio .
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY deploy/docker/install.sh /install.sh
COPY requirements/studio.lock /locks/
COPY requirements/build.lock requirements/install_locked.sh /locks/
COPY pyproject.toml ./
COPY trinity trinity
COPY services/__init__.py services/
RUN /install.sh /locks/studio.lock /venv

FROM python:3.11-slim-bookworm
COPY --from=build /venv /venv
# Bytecode goes where a container with a read-only root may write.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX=/tmp/pycache HOME=/tmp
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["trinity", "studio"]
