"""OpenVINO GenAI as a peer: `PYTHON bench/peers/with_openvino.py MODEL_DIR FORMAT THREADS`, format f32 or int8.

Exports the checkpoint through optimum-intel, then runs continuous batching over token ids with the prefix cache
disabled. Its f32 computes in bfloat16 where the processor supports it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
from turns import Generate, Prompts, serve


def main() -> None:
    folder, kind, num_threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    serve(lambda: (load(export(folder, kind), num_threads), importlib.metadata.version("openvino-genai")))


def export(folder: Path, kind: str) -> Path:
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    to = folder / f"openvino-{kind}"
    if not to.exists():
        quantised = OVWeightQuantizationConfig(bits=8) if kind == "int8" else None
        model = OVModelForCausalLM.from_pretrained(
            folder, export=True, compile=False, load_in_8bit=False, quantization_config=quantised
        )
        model.save_pretrained(to)
        write_tokenizer(to)
    return to


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer that is never used; the pipeline does not start without one."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a", bos_token="b", eos_token="c")
    tokenizer.save_pretrained(folder)
    encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    openvino.save_model(encoder, folder / "openvino_tokenizer.xml")
    openvino.save_model(decoder, folder / "openvino_detokenizer.xml")


def load(folder: Path, num_threads: int) -> Generate:
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.cache_size = 2048, 16, 1
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(folder), scheduler, "CPU", {"INFERENCE_NUM_THREADS": num_threads}
    )
    next_id = 0

    def generate(prompts: Prompts, num_out: int) -> list[list[int]]:
        nonlocal next_id
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.min_new_tokens, config.ignore_eos = num_out, num_out, True
        config.do_sample, config.eos_token_id = False, -1
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(pipeline.add_request(next_id, ids, config))
            next_id += 1
        found: list[list[int]] = [[] for _ in prompts]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for row, handle in zip(found, handles, strict=True):
                if handle.can_read():
                    for output in handle.read().values():
                        row += output.generated_ids
        return found

    return generate


if __name__ == "__main__":
    main()
