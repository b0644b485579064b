"""Conversations render as in the reference renderer, with the template that the model and the caller select."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from engine.text.chat_template import ChatTemplate, find_chat_templates, plain_conversation
from engine.text.template_pool import TemplateRefused

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_every_golden_template_renders_or_refuses_as_the_reference(test_data: Path) -> None:
    goldens = json.loads((test_data / "templates/goldens.json").read_text())
    variables = {name: value for name, value in goldens["variables"].items() if name != "strftime_now"}
    num_rendered = num_refused = 0
    for name, entry in goldens["templates"].items():
        template = ChatTemplate((test_data / "templates" / name).read_text(), variables, now=lambda: NOW)
        for context_name, expected in entry["renders"].items():
            context = goldens["contexts"][context_name]
            if "text" in expected:
                assert template.render(**context) == expected["text"], (name, context_name)
                num_rendered += 1
            elif "access to attribute 'append'" in expected["error"]:  # allowed here, on the template's own copy
                assert template.render(**context)
            else:
                with pytest.raises(TemplateRefused):
                    template.render(**context)
                num_refused += 1
    assert (num_rendered, num_refused) == (444, 44)


def test_template_syntax_in_messages_is_not_evaluated() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert template.render([{"role": "user", "content": "{{7*7}}{% raw %}"}]) == "{{7*7}}{% raw %}"


def test_an_invalid_template_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="cannot be read"):
        ChatTemplate("{% if %}", {})


def test_template_files_take_precedence_over_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "tool_use", "template": "with"}, {"name": "default", "template": "yes"}]}
    assert find_chat_templates(tmp_path, {}) == {}
    assert find_chat_templates(tmp_path, {"chat_template": "one"}) == {"default": "one"}
    assert find_chat_templates(tmp_path, config) == {"tool_use": "with", "default": "yes"}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "older"}')
    assert find_chat_templates(tmp_path, config)["default"] == "older"
    (tmp_path / "chat_template.jinja").write_text("own")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/rag.jinja").write_text("sources")
    assert find_chat_templates(tmp_path, config) == {"tool_use": "with", "default": "own", "rag": "sources"}


@pytest.mark.parametrize("damage", [7, ["x"], [{"name": "default"}], {"default": 1}])
def test_a_configured_template_of_a_wrong_type_is_rejected(tmp_path: Path, damage: object) -> None:
    with pytest.raises(ValueError, match=r"chat_template in tokenizer_config\.json"):
        find_chat_templates(tmp_path, {"chat_template": damage})


@pytest.mark.parametrize("damage", [b"", b"[]", b"\xff", b"[" * 100_000, b" " * (5 * 1024 * 1024)])
def test_a_damaged_template_file_is_rejected(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "chat_template.json").write_bytes(damage)
    with pytest.raises(ValueError, match=r"chat_template\.json"):
        find_chat_templates(tmp_path, {})


def test_the_template_is_selected_by_name_or_by_the_presence_of_tools(tmp_path: Path) -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools", "rag": "{{ documents|length }}"}, {})
    assert template.names == ("default", "tool_use", "rag")
    assert template.render([]) == "plain"
    assert template.render([], tools=[]) == "tools"
    assert template.render([], tools=[], chat_template="default") == "plain"
    assert template.render([], chat_template="rag", documents=[{}, {}]) == "2"
    with pytest.raises(TemplateRefused, match="no chat template named other; it has default, tool_use, rag"):
        template.render([], chat_template="other")
    with pytest.raises(TemplateRefused, match="no chat template named default"):
        ChatTemplate({"rag": ""}, {}).render([])


def test_template_kwargs_do_not_replace_messages_or_tools() -> None:
    template = ChatTemplate("{{ messages|length }}{{ tools is none }}{{ bos_token }}{{ mood }}", {"bos_token": "<s>"})
    assert template.render([{}], mood="fine") == "1True<s>fine"


def test_the_strings_and_tools_of_a_template_are_found() -> None:
    template = ChatTemplate(
        "{% if tools %}{% endif %}{% if m.role == 'user' %}{{ m.text.split('</x>') }}{% endif %}", {}
    )
    assert template.reads_tools
    assert {"role", "user", "text", "</x>"} <= template.words
    assert not ChatTemplate("{{ messages }} tools", {}).reads_tools


def test_a_conversation_without_a_template_has_one_line_per_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert plain_conversation(messages) == "system: Be brief.\nuser: Hi\nassistant:"
