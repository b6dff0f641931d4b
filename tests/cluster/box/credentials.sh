#!/usr/bin/env bash
# Write what the cluster's programs know each other by into STATE: one key and certificate, a token
# and a kubeconfig for each client. All is new at every start and lives as long as the cluster.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"

umask 077
mkdir -p "$STATE/kubeconfigs"
cd "$STATE"
# The certificate is its own authority. The API server serves with it and shows it to the kubelet;
# the key also signs the pods' tokens. Python 3.13 refuses an authority without keyUsage.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
  -subj /O=system:masters/CN=test-cluster \
  -addext "keyUsage=critical,digitalSignature,keyCertSign" \
  -addext "extendedKeyUsage=serverAuth,clientAuth" \
  -addext "subjectAltName=IP:127.0.0.1,IP:$NODE_IP,IP:10.96.0.1,DNS:kubernetes.default.svc" \
  -keyout key.pem -out cert.pem 2>/dev/null
openssl pkey -in key.pem -pubout -out key.pub

: >tokens.csv
give_token() { # FILE USER [GROUP]
  local token
  token=$(openssl rand -hex 16)
  echo "$token,$2,$2,\"${3:-}\"" >>tokens.csv
  cat >"kubeconfigs/$1" <<YAML
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster:
    server: https://127.0.0.1:$API_PORT
    certificate-authority-data: $(base64 -w0 cert.pem)
users:
- name: $1
  user: {token: $token}
contexts:
- name: test
  context: {cluster: test, user: $1}
current-context: test
YAML
}
give_token admin admin system:masters
give_token controller-manager system:kube-controller-manager
give_token scheduler system:kube-scheduler
give_token kubelet "system:node:$NODE" system:nodes
