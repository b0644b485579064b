from pathlib import Path

import pytest

from engine.adapters.local_adapter import LocalAdapter
from engine.tasks.adapter_check import AdapterCheck
from engine.tasks.work import Refused


async def test_model_without_adapter_support_gives_the_reason(tmp_path: Path) -> None:
    check = AdapterCheck({}, "LlamaForCausalLM")
    with pytest.raises(Refused, match=r"'/lora' cannot be used with this model: .*HEARTH_NODE_ADAPTER_BYTES.* GPU"):
        await check.check(LocalAdapter("digest", str(tmp_path)))


async def test_a_folder_without_an_adapter_is_refused_each_time(tmp_path: Path) -> None:
    check = AdapterCheck({"model.layers.0.self_attn.q_proj": (8, 8)}, "LlamaForCausalLM")
    for _ in range(2):
        with pytest.raises(Refused, match=r"'/lora' cannot be used with this model: .*adapter_config"):
            await check.check(LocalAdapter("digest", str(tmp_path)))
