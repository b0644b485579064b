"""vLLM's CPU build as a peer: `PYTHON bench/peers/with_vllm.py MODEL_DIR FORMAT THREADS`, format bf16.

Uses the library's `LLM` over token ids in one process with default compilation (a minute, the first time) and the
prefix cache disabled. Needs its own environment: `bench/peers/vllm.txt`.
"""

from __future__ import annotations

import os
import sys

from turns import Generate, Prompts, serve

MAX_STREAMS, MAX_LEN, BATCH = 16, 1024, 2048


def main() -> None:
    folder, kind, num_threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}" if num_threads > 1 else "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    serve(lambda: load(folder, {"bf16": "bfloat16", "f32": "float32"}[kind]))


def load(folder: str, dtype: str) -> tuple[Generate, str]:
    import vllm

    engine = vllm.LLM(
        folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        max_model_len=MAX_LEN,
        max_num_seqs=MAX_STREAMS,
        max_num_batched_tokens=BATCH,
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
    )

    def generate(prompts: Prompts, num_out: int) -> list[list[int]]:
        wanted = vllm.SamplingParams(
            max_tokens=num_out, min_tokens=num_out, temperature=0.0, ignore_eos=True, detokenize=False
        )
        requests = [vllm.TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        found = engine.generate(requests, wanted, use_tqdm=False)
        return [list(response.outputs[0].token_ids) for response in found]

    return generate, vllm.__version__


if __name__ == "__main__":
    main()
