"""tenants/residency.py: rules only narrow, and invalid rules admit no location."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.database import Database
from tenants import accounts
from tenants.audit import audit_log as audit
from tenants.credentials import api_tokens, user_tokens
from tenants.credentials.policies import Policy
from tenants.credentials.principal import Principal
from tenants.credentials.token_verifier import TokenVerifier
from tenants.credentials.user_tokens import TokenOwner, TokenSpec
from tenants.residency import (
    ANYWHERE,
    UNKNOWN_LOCATION,
    Location,
    RegionRule,
    Residency,
    decode_rule,
    encode_rule,
    make_rule,
    parse_location,
    parse_locations,
    parse_rule,
    read_rule,
    residency_of,
)
from tests.tenants.conftest import PEPPER

NAMES = st.sampled_from(["DE", "FR", "US", "eu", "fedramp"])
RULES = st.builds(lambda names: parse_rule(",".join(names)), st.sets(NAMES, min_size=1))
LOCATIONS = st.sampled_from(
    [UNKNOWN_LOCATION, parse_location("DE"), parse_location("FR"), parse_location("US:fedramp"), parse_location("US")]
)


def test_location_is_admitted_by_country_or_jurisdiction():
    places = parse_locations("fra=DE, iad = US:fedramp+hipaa,zrh=CH")
    assert places["fra"] == Location("DE", frozenset({"eu", "eea"}))
    rule = parse_rule("FR,eu")
    assert rule == RegionRule(("FR",), ("eu",))
    assert [name for name, location in places.items() if rule.admits(location)] == ["fra"]
    assert [name for name, location in places.items() if parse_rule("CH,fedramp").admits(location)] == ["iad", "zrh"]
    assert not rule.admits(UNKNOWN_LOCATION)
    assert ANYWHERE.admits(UNKNOWN_LOCATION)


@settings(max_examples=20)
@given(RULES, RULES, LOCATIONS)
def test_additional_rule_only_narrows(first: RegionRule, second: RegionRule, location: Location):
    both = Residency((first,)).narrowed(second)
    assert both.admits(location) == (first.admits(location) and second.admits(location))
    assert both.may_keep(location) == both.admits(location)
    assert not Residency((), is_zero_retention=True).may_keep(location)
    assert decode_rule(encode_rule(first)) == first


@pytest.mark.parametrize("text", ["", ",", "de", "DEU", "D E", "-x", "EU!", "eu,Fr", ",".join(["DE"] * 3 + ["a" * 33])])
def test_invalid_region_is_rejected(text: str):
    with pytest.raises(ValueError, match=r"region|countries|jurisdictions"):
        parse_rule(text) if text != "de" else make_rule(["de"])


@pytest.mark.parametrize(
    "value", [[], {"countries": "DE"}, {"countries": [1]}, {"places": ["DE"]}, {}, {"countries": []}]
)
def test_api_rule_is_an_object_of_lists(value: Any):
    with pytest.raises(ValueError, match=r"region|countries|jurisdictions"):
        read_rule(value)


@pytest.mark.parametrize("text", ["fra", "fra=", "=DE", "fra=DE,fra=FR", "fra=germany", "iad=US:eu", "fra=DE:E U"])
def test_impossible_location_is_rejected(text: str):
    with pytest.raises(ValueError):
        parse_locations(text)


def test_unreadable_rule_is_treated_as_the_strictest():
    assert residency_of(None, "standard") is ANYWHERE
    assert residency_of(None, "thirty-days").is_zero_retention
    assert not residency_of('{"continents": 7, "countries": 3}', "standard").admits(parse_location("DE"))


async def test_principal_has_the_rules_of_its_account_and_token(database: Database):
    account_id = (await accounts.create(database, "Ada")).account_id
    verifier = TokenVerifier(database, PEPPER)
    created = await api_tokens.create(database, PEPPER, account_id, "t", ["Workers AI Read"])
    policy = Policy("p", "allow", ("a92d2450e05d4e7bb7d0a64968f83d11",), (f"com.cloudflare.api.account.{account_id}",))
    spec = TokenSpec("narrow", (policy,), region=parse_rule("DE"))
    narrow = await user_tokens.create(database, PEPPER, TokenOwner("account", account_id), spec)
    assert narrow.token.region == parse_rule("DE")
    await accounts.set_region(database, account_id, parse_rule("eu"))
    await accounts.set_retention(database, account_id, "zero")
    with pytest.raises(ValueError, match="standard, zero"):
        await accounts.set_retention(database, account_id, "none")
    for secret, rules in ((created.secret, (parse_rule("eu"),)), (narrow.secret, (parse_rule("eu"), parse_rule("DE")))):
        principal = await verifier.verify(secret)
        assert isinstance(principal, Principal)
        assert principal.residency == Residency(rules, is_zero_retention=True)
    found = await accounts.find(database, account_id)
    assert found is not None
    assert (found.region, found.retention) == (parse_rule("eu"), "zero")
    entries = {entry.action: entry.detail for entry in await audit.list_recent(database, account_id)}
    assert entries["account.retention"] == "zero"
    assert entries["account.region"] == '{"jurisdictions":["eu"]}'
