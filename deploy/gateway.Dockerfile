# The gateway and the `hearth` command: the base dependencies, no torch and no other device library.
FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# An empty volume gets the owner and the mode of the folder on which it is mounted.
RUN useradd --system --uid 10001 --create-home hearth && cd /var/lib && mkdir -p hearth/spool hearth/audit hearth/key \
    hearth/service/keys/gateway-gateway hearth/service/keys/node-node-1 && chown -R hearth hearth && \
    chmod -R go= hearth/key hearth/service/keys
WORKDIR /app
COPY . .
RUN pip install --constraint requirements.lock .
USER hearth
WORKDIR /home/hearth
CMD ["python", "-m", "gateway"]
