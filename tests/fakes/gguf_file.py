"""A tiny GGUF file with a tokenizer, written with the format's own library."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_TOKENS = ["<s>", "</s>", "a", "b", "ab", "Ġ"]


def write_gguf(path: Path, *, architecture: str = "llama", pre: str = "gpt-2", context_length: int = 2048) -> Path:
    """Write a model with name, license and chat template in its header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Acme Tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(context_length)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(_TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    writer.add_tensor("token_embd.weight", np.ones((len(_TOKENS), 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
