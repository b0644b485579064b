# The gateway and the `hearth` command: the base dependencies, no torch and no other device library.
FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --system --uid 10001 --create-home hearth && mkdir -p /var/lib/hearth/spool && chown -R hearth /var/lib/hearth
WORKDIR /app
COPY . .
RUN pip install --constraint requirements.lock .
USER hearth
WORKDIR /home/hearth
CMD ["python", "-m", "gateway"]
