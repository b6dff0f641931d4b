# Airflow's components: api-server, scheduler, dag-processor, triggerer; one image, its command says which.
#
#   docker build -f include/deploy/images/airflow.Dockerfile -t REGISTRY/shardline-airflow:0.1.0 .
#
# The default has no engine: shards run in pods. With one, on this machine's CPU (docker-compose.yaml):
#   --build-arg LOCK=local-lock-3.11.txt
FROM python:3.11-slim-bookworm

# libnuma and libgomp are what the engine's CPU build is linked with
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libnuma1 \
    && rm -rf /var/lib/apt/lists/*
RUN python -m pip install --no-cache-dir uv==0.13.9

WORKDIR /opt/shardline
ARG LOCK=airflow-lock-3.11.txt
COPY include/requirements/${LOCK} lock.txt
# Compiled here: a dag file that imports slowly in a task looks to Airflow like one that is gone.
RUN uv pip install --system --no-cache --no-deps --compile-bytecode -r lock.txt

COPY pyproject.toml requirements.txt ./
COPY include include
COPY dags dags
RUN uv pip install --system --no-cache --no-deps --editable . \
    && python -m compileall -q dags include

# USER: its uid has no name in this image, and Airflow's components do not start as somebody without one.
ENV AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/shardline/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    GX_ANALYTICS_ENABLED=false \
    HOME=/opt/airflow \
    PYTHONPATH=/opt/shardline/include \
    PYTHONUNBUFFERED=1 \
    USER=airflow
# Volumes that are mounted here start with this owner.
RUN install --directory --owner=50000 --group=0 \
    /opt/airflow /opt/airflow/logs /opt/airflow/models /opt/airflow/state
USER 50000:0

ENTRYPOINT ["airflow"]
CMD ["version"]
