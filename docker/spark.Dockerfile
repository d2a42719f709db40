# Lithify on a Spark image: for the job on EMR Serverless, and for a dispatcher with drivers beside it.
# From the repository's root, on the Spark of requirements.lock:
#
#     docker build --file docker/spark.Dockerfile --tag lithify-spark .
#
# or on any other Spark, whose user and Python are named:
#
#     docker build --file docker/spark.Dockerfile --tag lithify-spark --build-arg BASE=<image> \
#         --build-arg PREPARE='dnf install --assumeyes python3.11' --build-arg PYTHON=python3.11 --build-arg RUN_AS=hadoop:hadoop .
#
# The job is local:///opt/lithify/main.py, and its Python /opt/lithify/bin/python.

# `spark`: the stage below. Else an image with Spark 3.5 or 4.
ARG BASE=spark
# What `spark` is built on: a Debian or Ubuntu with Python 3.11, 3.12 or 3.13.
ARG PYTHON_BASE=docker.io/library/python:3.11-slim-bookworm

# Spark and a Java, and nothing of Lithify: a master or a worker of a standalone Spark runs from it, too.
FROM ${PYTHON_BASE} AS spark
# Debian keeps only one release of a package: a pin would end with the next one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 spark \
    && useradd --uid 10001 --gid spark --home-dir /var/lithify --no-create-home spark \
    && mkdir --mode 0750 /var/lithify \
    && chown spark:spark /var/lithify
WORKDIR /opt/spark-python
COPY requirements.lock ./
RUN python3 -m venv /opt/spark-python \
    && awk '/^[a-z]/ {keep = /^setuptools==/} keep' requirements.lock > builder.lock \
    && awk '/^[a-z]/ {keep = /^(pyspark|py4j)==/} keep' requirements.lock > spark.lock \
    && bin/python -m pip install --quiet --no-cache-dir --require-hashes --no-deps --requirement builder.lock \
    && bin/python -m pip install --quiet --no-cache-dir --require-hashes --no-deps --no-build-isolation --requirement spark.lock \
    && ln -s /opt/spark-python/lib/python3.*/site-packages/pyspark /opt/spark
ENV SPARK_HOME=/opt/spark PATH=/opt/spark/bin:${PATH}
USER 10001:10001
WORKDIR /var/lithify

FROM ${BASE}
ARG PYTHON=python3
# A command that brings what the image lacks.
ARG PREPARE=true
ARG RUN_AS=10001:10001
ARG CPU=x86-64-v3
ENV NUMBA_CPU_NAME=${CPU} NUMBA_CPU_FEATURES=""
# hadolint ignore=DL3002,DL3066
USER root
WORKDIR /opt/lithify-build
RUN sh -c "${PREPARE}" \
    && { "${PYTHON}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
    || { echo "Lithify needs Python 3.11, 3.12 or 3.13: PREPARE installs one in this image, PYTHON names it" >&2; exit 1; }; }
COPY docker/requirements.lock ./
RUN "${PYTHON}" -m venv /opt/lithify \
    && /opt/lithify/bin/python -m pip install --quiet --no-cache-dir --only-binary :all: --require-hashes --no-deps --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY compactor compactor
COPY dispatcher dispatcher
COPY launcher launcher
COPY lithify lithify
# Kernels lie beside their sources, where numba loads them only for a user who may write there.
RUN /opt/lithify/bin/python -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/lithify/bin/python -P -m compactor.kernels.warm \
    && chown -R "${RUN_AS}" /opt/lithify/lib/python3.*/site-packages/compactor/kernels/__pycache__ \
    && ln -s /opt/lithify/lib/python3.*/site-packages/compactor/main.py /opt/lithify/main.py
ENV PATH=/opt/lithify/bin:${PATH} PYSPARK_PYTHON=/opt/lithify/bin/python PYSPARK_DRIVER_PYTHON=/opt/lithify/bin/python
USER ${RUN_AS}
WORKDIR /var/lithify
