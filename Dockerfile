# One image for every service: `celeriac worker`, `scheduler`, `migrate`, `flower`. docs/deploy.md.
#
# It has no HEALTHCHECK, because each service has another: docker-compose.yml names them.

ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/celeriac
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src

# The locked dependencies first: they change seldom, and this layer with them. Only wheels, so that no
# compiler is needed.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --frozen --no-default-groups --no-install-project --no-build

COPY README.md LICENSE ./
COPY core core
COPY storage storage
COPY tasks tasks
COPY scheduler scheduler
COPY api api
COPY examples examples
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --frozen --no-default-groups --no-editable

FROM ${BASE}
# The same number on every host, so that a volume's files can be given to it.
RUN groupadd --gid 10001 celeriac \
    && useradd --uid 10001 --gid celeriac --home-dir /app --no-create-home --shell /usr/sbin/nologin celeriac
COPY --from=build /opt/celeriac /opt/celeriac
WORKDIR /app
COPY examples examples
# What is written to a pipe is not held back until a buffer is full; nothing is written into /app.
ENV PATH=/opt/celeriac/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["celeriac"]
CMD ["--help"]
