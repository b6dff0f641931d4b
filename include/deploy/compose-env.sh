#!/usr/bin/env bash
# Adds to .env the secrets of docker-compose.yaml that it does not have yet. What is there stays: a
# database keeps the password it was made with. Needs openssl.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
file=${1:-.env}
umask 077
touch "$file"

add() { # name, then a command that prints the value
  grep -q "^$1=" "$file" && return
  printf '%s=%s\n' "$1" "$("${@:2}")" >>"$file"
  echo "compose-env: made $1"
}
fernet() { openssl rand -base64 32 | tr '+/' '-_'; }

add POSTGRES_PASSWORD openssl rand -hex 24
add AIRFLOW_FERNET_KEY fernet
add AIRFLOW_JWT_SECRET openssl rand -hex 64
add AIRFLOW_API_SECRET_KEY openssl rand -hex 32
add AIRFLOW_ADMIN_PASSWORD openssl rand -hex 12
add S3_SECRET_KEY openssl rand -hex 24
