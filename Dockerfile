# The server in a container.
#
#   docker build -t gapless .
#   docker run --gpus all -p 2020:2020 -v /path/to/model:/model:ro --stop-timeout 75 gapless /model
#   docker run -p 2020:2020 --stop-timeout 75 gapless                  on processors; a model by its name, kept in a volume:
#   docker run --gpus all -p 2020:2020 -v gapless-cache:/cache --stop-timeout 75 gapless vikhyatk/moondream2
#
# Without a model's folder it serves the one that GAPLESS_MODEL or a settings file names, or else glint, the bundled one. The
# port is set with GAPLESS_PORT, which the health check reads too. Settings are variables (-e GAPLESS_MAX_ROWS=64) or flags behind
# the model; keys are best a mounted file (-e GAPLESS_API_KEYS_FILE=/run/secrets/keys). Nothing is written but /tmp, and /cache where a model is fetched. The stop
# timeout is for the default of GAPLESS_DRAIN_TIMEOUT, 30 seconds: raise it by as much.
#
# The wheel of torch on PyPI brings CUDA's libraries along; the host needs NVIDIA's driver and container toolkit, and
# nothing else. For processors alone, an image of a tenth of the size:
#   docker build -t gapless --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# With Ray, for clusters (docs/fleet.md):
#   docker build -t gapless-ray --build-arg EXTRA=ray .

FROM python:3.12-slim AS build
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://pypi.org/simple
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/gapless
ENV PATH=/opt/gapless/bin:$PATH
# The version is in TORCH.
# hadolint ignore=DL3013
RUN pip install --index-url "$TORCH_INDEX" "$TORCH"
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
ARG EXTRA=serve
# The versions are in pyproject.toml.
# hadolint ignore=DL3013
RUN pip install ".[$EXTRA]"

FROM python:3.12-slim
COPY --from=build /opt/gapless /opt/gapless
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin gapless && install -d -o 10001 /cache
USER 10001
ENV PATH=/opt/gapless/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp GAPLESS_HOST=0.0.0.0 GAPLESS_PORT=2020 \
    GAPLESS_CACHE=/cache
EXPOSE 2020
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"GAPLESS_PORT\"]}/health', timeout=2)"]
ENTRYPOINT ["gapless", "serve"]
