#!/bin/sh
# Write .env with new secrets for docker-compose.yml. Fails if .env exists: a new pepper would invalidate all API tokens.
set -eu
cd "$(dirname "$0")/.."
[ -e .env ] && { echo "make_env: .env is there already" >&2; exit 1; }
secret() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat > .env <<END
HEARTH_TOKEN_PEPPER=$(secret 32)
HEARTH_CACHE_SECRET=$(secret 32)
POSTGRES_PASSWORD=$(secret 24)
S3_ACCESS_KEY=hearth
S3_SECRET_KEY=$(secret 24)
GRAFANA_PASSWORD=$(secret 16)
END
echo "make_env: wrote .env"
