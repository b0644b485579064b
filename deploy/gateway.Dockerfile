# The gateway, the dashboard and the `hearth` command: the base dependencies, no torch and no other device library.
FROM node:24-slim AS dashboard
WORKDIR /build/dashboard
COPY dashboard/package.json dashboard/package-lock.json dashboard/.npmrc ./
RUN npm ci
COPY dashboard .
RUN npm run build

FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# An empty volume gets the owner and the mode of the folder on which it is mounted.
RUN useradd --system --uid 10001 --create-home hearth && cd /var/lib && mkdir -p hearth/spool hearth/audit hearth/key \
    hearth/service/keys/gateway-lis hearth/service/keys/gateway-fra hearth/service/keys/node-lis-1 \
    hearth/service/keys/node-fra-1 && chown -R hearth hearth && chmod -R go= hearth/key hearth/service/keys
WORKDIR /app
COPY . .
COPY --from=dashboard /build/gateway/static gateway/static
RUN pip install --constraint requirements.lock .
USER hearth
WORKDIR /home/hearth
CMD ["python", "-m", "gateway"]
