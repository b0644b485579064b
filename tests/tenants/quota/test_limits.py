"""tenants/quota/limits.py: parsing rules, and the limits that apply to a call."""

import pytest

from tenants.credentials.principal import AccountTerms, Principal
from tenants.quota.limits import CONTRACT, Limits, Rule, in_force, items_of, parse_overrides, parse_rules

MODEL = "@cf/zai-org/glm-5.3"


def principal(plan: str = "paid", account_limits: str = "", limits: str = "") -> Principal:
    return Principal("acc", "tok", frozenset(), account=AccountTerms(plan, account_limits), limits=limits)


def passed(text: str, caller: Principal, task: str = "chat", model: str = "") -> dict[str, int]:
    return {item.name: item.limit for item in Limits(parse_rules(text)).items(caller, task, model)}


def test_rules_are_parsed():
    assert parse_rules("") == {}
    assert parse_rules("contract") == parse_rules(CONTRACT)
    assert parse_rules("a-b=1/2") == {"a-b": Rule("a-b", "requests", 1, 2)}
    assert parse_rules("a.requests=1/2") == parse_rules("a=1/2")
    assert parse_rules("free:account.calls=3, account.tokens=9/60") == {
        "free:account.calls": Rule("account", "calls", 3, 0, "free"),
        "account.tokens": Rule("account", "tokens", 9, 60),
    }
    assert parse_rules("contract, text-generation=7/60")["text-generation"].count == 7
    for bad in ("x", "chat=0/60", "chat=1", "chat=1/0", "Chat=1/2", "chat=1/60 token=1/2", "a.calls=1/60", "a.b=1/2"):
        with pytest.raises(ValueError, match="must be contract"):
            parse_rules(bad)
    with pytest.raises(ValueError, match="at most 200 rules"):
        parse_rules(",".join(f"a{chr(97 + i % 26)}{chr(97 + i // 26)}=1/2" for i in range(201)))
    with pytest.raises(ValueError, match="8192 characters"):
        parse_rules("a=1/2," * 2000)
    with pytest.raises(ValueError, match="must not name a plan"):
        parse_overrides("free:account=1/60")


def test_model_rule_replaces_its_task_rule():
    rules = in_force(parse_rules("contract"), "paid")
    names = [(item.name, item.limit, item.span_ms) for item in items_of(rules, "a", "t", "text-generation", MODEL)]
    assert names == [("token", 1200, 300_000), (MODEL, 20, 60_000)]
    names = [(item.name, item.limit) for item in items_of(rules, "a", "t", "text-generation", "@cf/x/y")]
    assert names == [("token", 1200), ("text-generation", 300)]


def test_rules_of_plan_account_and_token_replace_general_rules():
    text = "account=100/60, free:account=10/60, token.calls=5"
    assert passed(text, principal()) == {"account": 100, "token.calls": 5}
    assert passed(text, principal("free")) == {"account": 10, "token.calls": 5}
    assert passed(text, principal("free", "account=20/60, chat=7/60")) == {"account": 20, "chat": 7, "token.calls": 5}
    assert passed(text, principal("free", "account=20/60", "token.calls=1")) == {"account": 20, "token.calls": 1}
    assert passed("", principal(limits="token=3/60")) == {"token": 3}
    assert passed("", principal()) == {}


def test_request_without_a_model_is_not_limited_by_task_rules():
    limits = Limits(parse_rules("contract, account=5/60"))
    assert [item.name for item in limits.items(principal())] == ["account", "token"]


def test_each_owner_has_its_own_counts():
    limits = Limits(parse_rules("account=5/60, token=5/60, chat=5/60"))
    keys = {item.key for item in limits.items(principal(), "chat")}
    other = Principal("other", "tok2", frozenset())
    assert len(keys) == 3
    assert keys.isdisjoint(item.key for item in limits.items(other, "chat"))
    assert limits.items(principal(), "chat") is limits.items(principal(), "chat")


def test_waiting_calls_are_counted_apart_from_running_calls():
    rules = in_force(parse_rules("account.calls=9, account.waiting=3, free:token.waiting=1"), "free")
    found = items_of(rules, "a", "t", "chat")
    assert [(item.name, item.kind, item.limit, item.ends_at_first_output) for item in found] == [
        ("account.calls", "c", 9, False),
        ("account.waiting", "c", 3, True),
        ("token.waiting", "c", 1, True),
    ]
    assert len({item.key for item in found}) == 3
    with pytest.raises(ValueError, match="must be contract"):
        parse_rules("account.waiting=3/60")
