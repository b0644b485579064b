"""The sandboxed renderer gives what the reference renderer gave, and keeps its bounds."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from engine import chat_template
from engine.chat_template import ChatTemplate, TemplateRefused, find_chat_template, plain_conversation


def test_every_golden_template_renders_or_refuses_as_the_reference_did(test_data: Path) -> None:
    goldens = json.loads((test_data / "templates/goldens.json").read_text())
    variables = {name: value for name, value in goldens["variables"].items() if name != "strftime_now"}
    now = datetime(2026, 1, 2, 3, 4, 5)
    for name, entry in goldens["templates"].items():
        template = ChatTemplate((test_data / "templates" / name).read_text(), variables)
        for context_name, expected in entry["renders"].items():
            context = goldens["contexts"][context_name]
            if "text" in expected:
                assert template.render(**context, strftime_now=now.strftime) == expected["text"], (name, context_name)
            else:
                with pytest.raises(TemplateRefused):
                    template.render(**context, strftime_now=now.strftime)


def test_what_a_caller_writes_is_never_evaluated() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert template.render([{"role": "user", "content": "{{7*7}}{% raw %}"}]) == "{{7*7}}{% raw %}"


@pytest.mark.parametrize(
    "source",
    ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% for x in range(10**9) %}{% endfor %}"],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render([])


def test_a_template_cannot_outgrow_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 1000)
    with pytest.raises(TemplateRefused, match="bounds"):
        ChatTemplate("{% for x in range(2000) %}{{ x }}{% endfor %}", {}).render([])


def test_a_template_that_is_none_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="cannot be read"):
        ChatTemplate("{% if %}", {})


def test_the_models_own_file_comes_before_its_configuration(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]}
    assert find_chat_template(tmp_path, config) == "yes"
    assert find_chat_template(tmp_path, {}) is None
    (tmp_path / "chat_template.jinja").write_text("own")
    assert find_chat_template(tmp_path, config) == "own"


def test_a_model_without_a_template_sees_one_line_a_turn() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert plain_conversation(messages) == "system: Be brief.\nuser: Hi\nassistant:"
