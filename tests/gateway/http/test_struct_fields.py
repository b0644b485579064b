"""Struct conversion: errors name the field and its rule, and never repeat the client's value."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from gateway.http.struct_fields import FieldError, convert
from gateway.management.api_token_bodies import TokenBody


class Inner(Struct, forbid_unknown_fields=True):
    effect: Literal["allow", "deny"]
    dotted: int = msgspec.field(name="request.ip", default=0)


class Body(Struct):
    name: Annotated[str, Meta(max_length=5)]
    count: Annotated[int, Meta(ge=0, le=9)] = 1
    amount: Annotated[float, Meta(gt=0)] = 1
    items: Annotated[list[Inner], Meta(min_length=1, max_length=2)] | None = None
    values: dict[str, Literal["*"]] = {}
    at: Annotated[datetime, Meta(tz=True)] | None = None
    flag: bool = False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "name must be a string of at most 5 characters"),
        ({"name": "secret"}, "name must be a string of at most 5 characters"),
        ({"count": -1}, "count must be a whole number from 0 to 9"),
        ({"amount": 0}, "amount must be a number greater than 0"),
        ({"items": []}, "items must be a list of 1 to 2 items or null"),
        ({"items": [5]}, "items/0 must be an object with only effect and request.ip"),
        ({"items": [{}]}, "items/0/effect is required"),
        ({"items": [{"effect": "secret"}]}, "items/0/effect must be allow or deny"),
        ({"items": [{"effect": "deny", "request.ip": "secret"}]}, "items/0/request.ip must be a whole number"),
        (
            {"items": [{"effect": "deny", "secret": 1}]},
            "items/0 must be an object with only effect and request.ip",
        ),
        ({"values": {"secret": "x"}}, "values must be an object with the value *"),
        ({"at": "2027-01-01"}, "at must be an RFC 3339 time with a time zone, such as 2027-01-01T00:00:00Z or null"),
        ({"flag": "true"}, "flag must be true or false"),
    ],
)
def test_error_names_the_field_and_its_rule(change: dict[str, Any], message: str):
    with pytest.raises(FieldError) as error:
        convert({"name": "x"} | change, Body)
    assert str(error.value) == message


def test_missing_field_is_reported_as_required():
    with pytest.raises(FieldError, match=r"^name is required$") as error:
        convert({}, Body)
    assert error.value.is_missing


def test_text_is_converted_to_numbers_and_booleans_only_on_request():
    assert convert({"name": "x", "count": "1.0", "flag": "True"}, Body, from_text=True) == Body("x", 1, flag=True)
    for text in ("-1", "1e400", "9" * 5000, "nan", "x"):
        with pytest.raises(FieldError, match=r"^count must be a whole number from 0 to 9$"):
            convert({"name": "x", "count": text}, Body, from_text=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just("secret"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*TokenBody.__struct_fields__]), inner),
)


@given(st.dictionaries(st.sampled_from([*TokenBody.__struct_fields__, "secret"]), JSON))
def test_no_object_causes_any_other_exception(values: dict[str, Any]):
    with contextlib.suppress(FieldError):
        convert(values, TokenBody)
