# The worker: one shard per pod. vLLM's own image, and beside it the library; no Airflow.
#
#   docker build -f include/deploy/images/worker.Dockerfile -t REGISTRY/shardline-worker:0.1.0 .
#
# On a CPU (tests, small jobs):
#   --build-arg BASE=public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.33.0
#
# Then name it by its digest: SHARDLINE_WORKER_IMAGE=REGISTRY/shardline-worker:0.1.0@sha256:…
ARG BASE=vllm/vllm-openai:v0.33.0
FROM ${BASE}

# whoever the base runs as
USER root
WORKDIR /opt/shardline
COPY include/requirements/worker.txt requirements.txt
# What the base has stays as it is: torch and vLLM were built for each other.
RUN python3 -m pip list --format=freeze | grep -v '^pip==' > base.txt \
    && python3 -m pip install --no-cache-dir -r requirements.txt --constraint base.txt

COPY pyproject.toml ./
COPY include/shardline include/shardline
# Installed, not only found: vLLM looks for its plug-ins in what is installed.
RUN python3 -m pip install --no-cache-dir --no-deps . \
    && python3 -c "import vllm, shardline.worker.__main__, shardline.weights.__main__" \
    && ! python3 -c "import airflow" 2>/dev/null

# The root file system is read-only in a pod: what is written goes to volumes. USER: the uid has no name
# in the base, and libraries ask for one.
ENV HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    USER=shardline \
    VLLM_NO_USAGE_STATS=1 \
    SHARDLINE_MODEL_CACHE=/cache/models
RUN install --directory --owner=1000 --group=1000 /cache
USER 1000:1000

# Exec form, and no init before it: the worker gets SIGTERM itself, and its engine does not.
ENTRYPOINT ["python3", "-m", "shardline.worker"]
