"""Run shards in Kubernetes pods: what a pod is, when it is over, and what its end means. No Airflow."""
