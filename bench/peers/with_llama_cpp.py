"""llama.cpp as a peer: `PYTHON bench/peers/with_llama_cpp.py MODEL FORMAT THREADS`, format bf16, f16, q8_0 or q4_0.

Writes the weights of the folder MODEL to a GGUF file beside them, or uses MODEL if it is a GGUF file. Then uses the
library like its own batched example: all prompts in one batch, then one token of every stream per step, selected by
NumPy.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from turns import Generate, Prompts, serve

MAX_STREAMS, MAX_LEN, BATCH = 16, 1024, 2048


def main() -> None:
    model, kind, num_threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    serve(lambda: load(model if model.is_file() else write_gguf(model, kind), num_threads))


def write_gguf(folder: Path, kind: str) -> Path:
    """Write the Llama checkpoint of `folder` with all matrices in `kind` and norms in float32."""
    import gguf
    import torch
    from safetensors.torch import load_file

    path = folder / f"{kind}.gguf"
    if path.exists():
        return path
    config = json.loads((folder / "config.json").read_text())
    num_heads, head_dim = config["num_attention_heads"], config["head_dim"]
    wanted = {"bf16": "BF16", "f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}[kind]
    draft = path.with_suffix(".draft")
    writer = gguf.GGUFWriter(draft, "llama")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{wanted}"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.to(torch.float32).numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # GGUF stores these heads with interleaved rotary pairs
            heads = values.reshape(-1, 2, head_dim // 2, values.shape[1])
            values = np.ascontiguousarray(heads.swapaxes(1, 2).reshape(values.shape))
        target = names.get_name(name, try_suffixes=(".weight",))
        if values.ndim == 1:
            writer.add_tensor(target, values)
        else:
            quantised = gguf.GGMLQuantizationType[wanted]
            writer.add_tensor(target, gguf.quants.quantize(values, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return draft.replace(path)


def load(path: Path, num_threads: int) -> tuple[Generate, str]:
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = MAX_STREAMS * MAX_LEN // 2, BATCH, 512
    settings.n_seq_max = MAX_STREAMS
    settings.n_threads = settings.n_threads_batch = num_threads
    if hasattr(settings, "kv_unified"):
        settings.kv_unified = True
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit("llama.cpp made no context")
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def step(rows: list[tuple[int, int, int, bool]]) -> None:
        """Decode rows of (token, position, stream, whether logits are needed)."""
        batch.n_tokens = len(rows)
        for index, (token, position, stream, is_wanted) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, is_wanted
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, stream
        status = llama_cpp.llama_decode(context, batch)
        if status:
            raise SystemExit(f"llama_decode failed: {status}")

    def best(index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, index)
        return int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (vocab_size,)).argmax())

    def generate(prompts: Prompts, num_out: int) -> list[list[int]]:
        clear(llama_cpp, context)
        rows, wanted = [], []
        for stream, prompt in enumerate(prompts):
            rows += [(token, at, stream, at == len(prompt) - 1) for at, token in enumerate(prompt)]
            wanted.append(len(rows) - 1)
        step(rows)
        found = [[best(index)] for index in wanted]
        for drawn in range(1, num_out):
            step([(row[-1], len(prompts[i]) + drawn - 1, i, True) for i, row in enumerate(found)])
            for index, row in enumerate(found):
                row.append(best(index))
        return found

    return generate, llama_cpp.__version__


def clear(llama_cpp: Any, context: Any) -> None:
    """Clear all streams; the function's name differs between versions."""
    if hasattr(llama_cpp, "llama_memory_clear"):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    else:
        llama_cpp.llama_kv_self_clear(context)


if __name__ == "__main__":
    main()
