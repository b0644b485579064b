"""All settings of a node, read once from the environment. Invalid values are rejected at startup.

Measured properties of the machine (cores, devices) are not settings.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from catalog.card import parse_model_id
from catalog.errors import InvalidModelId
from engine.config import AUTO, KV_DTYPES, default_sequences
from engine.serving.addresses import parse_address, parse_http_address
from engine.serving.cuda_check import attention_fault
from engine.tasks.token_coalescer import DEFAULT_COALESCE_MS, MAX_COALESCE_MS
from telemetry.process_settings import ProcessSettings, is_objects_url, plain_name
from telemetry.settings import MAX_NUMBER, SettingError, at_least, one_of, parsed_by, setting, starts_with

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

DEFAULT_MODELS = "@cf/hearth/spark,@cf/hearth/minilm"
MIN_KV_BYTES = 1 << 20
_CPU_KV_BYTES = 256 << 20


def parse_models(text: str) -> tuple[str, ...]:
    """Model ids in a comma list; none for "none". Raises InvalidModelId."""
    if text.strip() == "none":
        return ()
    return tuple(parse_model_id(name.strip()) for name in text.split(","))


def _is_share(value: float) -> str | None:
    return None if 0 < value <= 1 else "must be greater than 0 and at most 1"


def _is_coalesce_ms(value: int) -> str | None:
    return None if 0 <= value <= MAX_COALESCE_MS else f"must be between 0 and {MAX_COALESCE_MS}"


def parse_kv_size(text: str) -> int:
    """Return the bytes of a KV cache; 0 for "auto". Raises ValueError."""
    if text == AUTO:
        return 0
    size_bytes = int(text) if text.isdecimal() else 0
    if not MIN_KV_BYTES <= size_bytes <= MAX_NUMBER[int]:
        raise ValueError(f"must be auto or at least {MIN_KV_BYTES} bytes")
    return size_bytes


def parse_sleep_size(text: str) -> int | None:
    """Return the bytes for sleeping models; None for "auto". Raises ValueError."""
    if text == AUTO:
        return None
    if not text.isdecimal() or int(text) > MAX_NUMBER[int]:
        raise ValueError("must be auto or a number of bytes")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class NodeSettings(ProcessSettings):
    """Settings of one node process."""

    listen: str = setting(
        "HEARTH_NODE_LISTEN",
        "Address on which gateways connect: unix:///path or tcp://host:port.",
        check=parsed_by(parse_address),
    )
    advertise: str = setting(
        "HEARTH_NODE_ADVERTISE",
        "Address published to gateways, if it differs from the listen address.",
        default="",
        check=parsed_by(parse_address),
    )
    http: str = setting(
        "HEARTH_NODE_HTTP",
        "Address of the HTTP interface for operators and health checks: host:port or unix:///path.",
        default="127.0.0.1:8790",
        check=parsed_by(parse_http_address),
    )
    node_id: str = setting(
        "HEARTH_NODE_ID",
        "Unique name of this node. The default is the host name.",
        default="",
        check=plain_name,
    )
    gateway_url: str = setting(
        "HEARTH_GATEWAY_URL",
        "URL of a gateway, from which an enrolled node reads the key ring: http://host:port or https://host.",
        default="",
        check=starts_with("http://", "https://"),
    )
    join_token: str = setting(
        "HEARTH_NODE_JOIN_TOKEN",
        "One-time token of `hearth node token`, with which a node without a service key joins at HEARTH_GATEWAY_URL.",
        default="",
        secret=True,
    )
    objects_url: str = setting(
        "OBJECTS_URL",
        "Object store with published models: file:///folder or s3://bucket/prefix. Built-in models need none.",
        default="",
        check=is_objects_url,
    )
    models: str = setting(
        "HEARTH_NODE_MODELS",
        "Comma-separated ids of the models to load at startup, in this order; or none.",
        default=DEFAULT_MODELS,
        check=parsed_by(parse_models, InvalidModelId),
    )
    max_replicas: int = setting(
        "HEARTH_NODE_MAX_REPLICAS",
        "Largest number of models loaded at once, besides sleeping ones and the limit of HEARTH_NODE_MEMORY_BYTES.",
        default=16,
        check=at_least(1),
    )
    memory_bytes: int = setting(
        "HEARTH_NODE_MEMORY_BYTES",
        "Bytes of device memory for the weights and KV caches of all models. If a model does not fit, idle models "
        "with little demand are evicted. 0 uses 90 % of a GPU's memory, or of the memory available at startup.",
        default=0,
        check=at_least(0),
    )
    memory_share: float = setting(
        "HEARTH_NODE_MEMORY_SHARE",
        "Part of the memory that HEARTH_NODE_MEMORY_BYTES=0 uses, if several nodes share a device. `hearth up` divides "
        "the device among its nodes.",
        default=1.0,
        check=_is_share,
    )
    sleep_size: str = setting(
        "HEARTH_NODE_SLEEP_BYTES",
        "Bytes of host memory for the weights of sleeping text models. A model that is evicted for another one sleeps "
        "while they fit; otherwise its process ends. auto: half of the host memory available at startup on a GPU, 0 "
        "elsewhere. 0 disables sleeping.",
        default=AUTO,
        check=parsed_by(parse_sleep_size),
    )
    pinned: str = setting(
        "HEARTH_NODE_PINNED",
        "Comma-separated ids of models that are kept loaded and never evicted; or none.",
        default="none",
        check=parsed_by(parse_models, InvalidModelId),
    )
    cache_dir: Path = setting(
        "HEARTH_NODE_CACHE_DIR",
        "Folder for weights downloaded from the object store.",
        default=Path(".hearth/cache/node"),
    )
    cache_max_bytes: int = setting(
        "HEARTH_NODE_CACHE_BYTES", "Largest size of that folder in bytes.", default=64 << 30, check=at_least(1 << 20)
    )
    device: str = setting(
        "HEARTH_NODE_DEVICE",
        "Device on which models run: cpu or cuda. cuda needs a driver, compute capability 8.0 and a C compiler.",
        default="cpu",
        check=one_of("cpu", "cuda"),
    )
    attention: str = setting(
        "HEARTH_NODE_ATTENTION",
        "Attention kernels on a GPU: auto, triton or torch. auto uses Triton; torch is for comparison.",
        default=AUTO,
        check=attention_fault,
    )
    graphs: str = setting(
        "HEARTH_NODE_GRAPHS",
        "CUDA graphs on a GPU: on or off. off queues every kernel of a step separately, which is slower.",
        default="on",
        check=one_of("on", "off"),
    )
    dtype: str = setting(
        "HEARTH_NODE_DTYPE",
        "Precision of weights and KV cache: auto, float32 or bfloat16.",
        default="auto",
        check=one_of("auto", "float32", "bfloat16"),
    )
    kv_dtype: str = setting(
        "HEARTH_NODE_KV_DTYPE",
        "Number format of the KV cache: auto (that of the model) or fp8, which holds twice as many tokens. fp8 needs "
        "compute capability 8.9 on a GPU, and is slow on a CPU.",
        default=AUTO,
        check=one_of(*KV_DTYPES),
    )
    num_threads: int = setting(
        "HEARTH_NODE_THREADS", "Threads per model. 0 uses all cores but one.", default=0, check=at_least(0)
    )
    tensor_parallel: int = setting(
        "HEARTH_NODE_TENSOR_PARALLEL",
        "Ranks per text generation model: processes with a device or a part of the cores each. Must divide the "
        "number of the model's heads.",
        default=1,
        check=at_least(1),
    )
    kv_size: str = setting(
        "HEARTH_NODE_KV_BYTES",
        "Bytes of memory for the KV cache of each model, if they are free when it is loaded; or auto: on a GPU what is "
        "free beside weights and a step's memory, divided among the models to load at startup; elsewhere 256 MiB.",
        default=AUTO,
        check=parsed_by(parse_kv_size),
    )
    kv_floor_bytes: int = setting(
        "HEARTH_NODE_KV_FLOOR_BYTES",
        "Smallest KV cache of a model. Other models are evicted for this much, and a model with less is not loaded.",
        default=64 << 20,
        check=at_least(1 << 20),
    )
    adapter_memory_bytes: int = setting(
        "HEARTH_NODE_ADAPTER_BYTES",
        "Bytes of memory for the LoRA adapters of each text model. The least recently used idle adapter is "
        "evicted first. 0 disables adapters.",
        default=512 << 20,
        check=at_least(0),
    )
    sequence_limit: int = setting(
        "HEARTH_NODE_MAX_SEQUENCES",
        "Largest number of sequences that a model generates at once. 0 is 256 on a GPU and 64 elsewhere.",
        default=0,
        check=at_least(0),
    )
    max_waiting: int = setting(
        "HEARTH_NODE_MAX_WAITING",
        "Largest number of sequences waiting for each model.",
        default=1024,
        check=at_least(0),
    )
    max_step_tokens: int = setting(
        "HEARTH_NODE_STEP_TOKENS",
        "Largest number of tokens in one step: decoding first, then prefill.",
        default=512,
        check=at_least(16),
    )
    speculation: str = setting(
        "HEARTH_NODE_SPECULATION",
        "Speculative decoding: card (the method on each model's card, otherwise off), prompt_lookup or off.",
        default="card",
        check=one_of("card", "prompt_lookup", "off"),
    )
    step_timeout_s: float = setting(
        "HEARTH_NODE_STEP_TIMEOUT_S",
        "Seconds without a response after which an idle engine process with pending work is killed; eight times as "
        "long if it computes.",
        default=15.0,
        check=at_least(0.1),
    )
    max_calls: int = setting(
        "HEARTH_NODE_MAX_CALLS", "Largest number of open calls on this node.", default=2048, check=at_least(1)
    )
    coalesce_ms: int = setting(
        "HEARTH_NODE_COALESCE_MS",
        "Milliseconds for which tokens of a stream are held so that several are sent together, at most 1000. The first "
        "token and the end of a stream are sent at once, and so is a token that comes this long after the previous "
        "send. 0 sends every token at once.",
        default=DEFAULT_COALESCE_MS,
        check=_is_coalesce_ms,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.join_token and not self.gateway_url:
            raise SettingError("HEARTH_GATEWAY_URL must be set with HEARTH_NODE_JOIN_TOKEN")

    def service_identity(self) -> ServiceIdentity:
        """Return this node's service identity. Raises ValueError, naming the setting, if the key files cannot be used
        or belong to another node or PoP."""
        from service_identity.key_ring import UnsafeKeyFile
        from service_identity.service_identity import ServiceIdentity

        try:
            identity = ServiceIdentity(self.service_ring, self.service_keys, "node")
        except UnsafeKeyFile as error:
            raise ValueError(f"HEARTH_SERVICE_RING, HEARTH_SERVICE_KEYS: {error}") from None
        if identity.name != self.name:
            raise ValueError(f"HEARTH_SERVICE_KEYS: the key of {identity.subject}, and HEARTH_NODE_ID is {self.name}")
        if identity.pop not in ("", self.pop):
            raise ValueError(f"HEARTH_SERVICE_KEYS: a key of the PoP {identity.pop}, and HEARTH_POP is {self.pop}")
        return identity

    @property
    def kv_memory_bytes(self) -> int:
        """Bytes for each KV cache; 0 means all free memory."""
        is_default = self.kv_size == AUTO and self.device != "cuda"
        return _CPU_KV_BYTES if is_default else parse_kv_size(self.kv_size)

    @property
    def has_graphs(self) -> bool:
        """True if steps on a GPU are captured."""
        return self.graphs == "on"

    @property
    def max_sequences(self) -> int:
        """Largest number of sequences that a model generates at once."""
        return self.sequence_limit or default_sequences(self.device)

    @property
    def name(self) -> str:
        """Return the node's id, configured or generated."""
        return self.node_id or socket.gethostname()
