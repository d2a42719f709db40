# The dispatcher and the keeper: `lithify` with what it needs, without Spark. From the repository's root:
#
#     docker build --file docker/dispatcher.Dockerfile --tag lithify-dispatcher .
#
# It is for sessions on EMR and EMR Serverless. A dispatcher with Spark drivers beside it needs docker/spark.Dockerfile.

# A Debian or Ubuntu with Python 3.11, 3.12 or 3.13.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
# The family of processors that kernels are compiled for, by LLVM's name; another one compiles them again at each start.
ARG CPU=x86-64-v3
ENV NUMBA_CPU_NAME=${CPU} NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=/opt/lithify/kernels
WORKDIR /build
COPY docker/requirements.lock ./
# Wheels only, so that nothing here needs a compiler either.
RUN python3 -m venv /opt/lithify \
    && /opt/lithify/bin/python -m pip install --quiet --no-cache-dir --only-binary :all: --require-hashes --no-deps --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY compactor compactor
COPY dispatcher dispatcher
COPY launcher launcher
COPY lithify lithify
RUN /opt/lithify/bin/python -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/lithify/bin/python -P -m compactor.kernels.warm \
    && /opt/lithify/bin/python -m pip uninstall --quiet --yes setuptools pip \
    && find /opt/lithify/lib -type d \( -name tests -o -name include \) ! -path '*/numpy/_core/tests' -prune -exec rm -r {} + \
    && find /opt/lithify/lib -path '*/pyarrow/*' -name '*_flight*' -delete
COPY docker/entrypoint.sh /opt/lithify/bin/entrypoint.sh

FROM ${BASE}
ARG CPU=x86-64-v3
RUN groupadd --gid 10001 lithify \
    && useradd --uid 10001 --gid lithify --home-dir /var/lithify --no-create-home --shell /usr/sbin/nologin lithify \
    && mkdir --mode 0750 /var/lithify \
    && chown lithify:lithify /var/lithify
COPY --from=build /opt/lithify /opt/lithify
ENV PATH=/opt/lithify/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CPU_NAME=${CPU} \
    NUMBA_CPU_FEATURES="" \
    NUMBA_CACHE_DIR=/tmp/lithify-kernels \
    LITHIFY_HTTP_PORT=8080 \
    LITHIFY_WORK_FOLDER=/var/lithify
# The only folders that are written to. As volumes they keep their owner when ECS mounts an empty one there.
VOLUME ["/tmp", "/var/lithify"]
USER 10001:10001
WORKDIR /var/lithify
EXPOSE 8080
# As in infra/service.py: ECS has its own and does not read this one.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['LITHIFY_HTTP_PORT'] + '/live', timeout=5)"]
ENTRYPOINT ["/opt/lithify/bin/entrypoint.sh"]
CMD ["lithify", "dispatch"]
