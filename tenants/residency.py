"""Data residency: decide where an account's calls may run and whether their content may be stored. Pure functions.

A location has a country and jurisdictions; a rule lists the countries and jurisdictions that the rule admits. The rules
of the account, the API token and the call all apply, so each rule can only narrow the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from msgspec import Struct

RetentionRule = Literal["standard", "zero"]
RETENTION_RULES: tuple[RetentionRule, ...] = ("standard", "zero")

MAX_NAMES = 64  # per list of a rule
_MAX_CITY = 64  # characters
_COUNTRY = re.compile(r"[A-Z]{2}")
_JURISDICTION = re.compile(r"[a-z][a-z0-9-]{1,31}")
_EU = "AT BE BG HR CY CZ DE DK EE ES FI FR GR HU IE IT LT LU LV MT NL PL PT RO SE SI SK".split()
# Jurisdictions that are defined by their countries. For all others (such as fedramp), the operator's configuration
# decides which locations belong to the jurisdiction.
_COUNTRIES_OF = {"eu": frozenset(_EU), "eea": frozenset([*_EU, "IS", "LI", "NO"])}


class RegionRule(Struct, frozen=True, omit_defaults=True):
    """Admit locations in one of the countries (ISO 3166, two letters) or in one of the jurisdictions."""

    countries: tuple[str, ...] = ()
    jurisdictions: tuple[str, ...] = ()

    def covers(self, other: RegionRule) -> bool:
        """Return True if this rule certainly admits every location that `other` admits."""
        countries = set(self.countries).union(*(_COUNTRIES_OF.get(name, ()) for name in self.jurisdictions))
        return countries.issuperset(other.countries) and all(
            name in self.jurisdictions or (name in _COUNTRIES_OF and countries >= _COUNTRIES_OF[name])
            for name in other.jurisdictions
        )

    def admits(self, location: Location) -> bool:
        return location.country in self.countries or not location.jurisdictions.isdisjoint(self.jurisdictions)


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a PoP or store. A location without a country is unknown, so no residency rule admits it. `city`
    and the coordinates, in degrees, are only for display."""

    country: str = ""
    jurisdictions: frozenset[str] = frozenset()
    city: str = ""
    latitude: float | None = None
    longitude: float | None = None


UNKNOWN_LOCATION = Location()


@dataclass(frozen=True, slots=True)
class Residency:
    """The residency requirements of a call.

    The call stays in locations that every rule admits. With `is_zero_retention`, none of the call's content is stored
    after the call has ended.
    """

    rules: tuple[RegionRule, ...] = ()
    is_zero_retention: bool = False

    def admits(self, location: Location) -> bool:
        return not self.rules or all(rule.admits(location) for rule in self.rules)

    def narrowed(self, rule: RegionRule | None) -> Residency:
        return self if rule is None else replace(self, rules=(*self.rules, rule))

    def may_keep(self, store: Location) -> bool:
        """Return True if content may be written to a store at this location for later retrieval."""
        return not self.is_zero_retention and self.admits(store)


ANYWHERE = Residency()


def residency_of(region: str | None, retention: str | None, token_region: str | None = None) -> Residency:
    """Return the residency requirements given by the columns of an account and an API token.

    A value that cannot be read is treated as the strictest one.
    """
    rules = tuple(rule for rule in map(decode_rule, (region, token_region)) if rule is not None)
    if not rules and retention in ("standard", None):
        return ANYWHERE
    return Residency(rules, is_zero_retention=retention not in ("standard", None))


def make_rule(countries: Iterable[str] = (), jurisdictions: Iterable[str] = ()) -> RegionRule:
    """Return a validated rule. Raises ValueError for an invalid name and for a rule that admits nothing."""
    rule = RegionRule(tuple(dict.fromkeys(countries)), tuple(dict.fromkeys(jurisdictions)))
    if not rule.countries and not rule.jurisdictions:
        raise ValueError("a region must name at least one country or jurisdiction")
    if max(len(rule.countries), len(rule.jurisdictions)) > MAX_NAMES:
        raise ValueError(f"a region can name at most {MAX_NAMES} countries and {MAX_NAMES} jurisdictions")
    if not all(_COUNTRY.fullmatch(name) for name in rule.countries):
        raise ValueError("countries must be ISO 3166 codes of two capital letters")
    if not all(_JURISDICTION.fullmatch(name) for name in rule.jurisdictions):
        raise ValueError("jurisdictions must have 2 to 32 characters of a-z 0-9 -")
    return rule


def parse_rule(text: str) -> RegionRule:
    """Parse a rule such as `DE,FR,eu`: names of two capital letters are countries, all others are jurisdictions.
    Raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    is_country = [_COUNTRY.fullmatch(name) is not None for name in names]
    return make_rule(
        (name for name, is_one in zip(names, is_country, strict=True) if is_one),
        (name for name, is_one in zip(names, is_country, strict=True) if not is_one),
    )


def read_rule(value: Any) -> RegionRule | None:
    """Parse the rule of an API request: null, or an object with two lists. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() - {"countries", "jurisdictions"}:
        raise ValueError("region must be an object with countries and jurisdictions")
    lists = [value.get(name) or [] for name in ("countries", "jurisdictions")]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        raise ValueError("countries and jurisdictions must be lists of names")
    return make_rule(*lists)


def shown_rule(rule: RegionRule | None) -> dict[str, list[str]] | None:
    """Return the rule in the form that the API shows."""
    if rule is None:
        return None
    return {"countries": list(rule.countries), "jurisdictions": list(rule.jurisdictions)}


def encode_rule(rule: RegionRule | None) -> str | None:
    """Encode a rule for a database column. `decode_rule` is the inverse."""
    return None if rule is None else msgspec.json.encode(rule).decode()


def decode_rule(text: str | None) -> RegionRule | None:
    """Decode a rule from a database column. A rule that this version cannot read admits no location."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=RegionRule)
    except msgspec.MsgspecError:
        return RegionRule()


def parse_locations(text: str) -> dict[str, Location]:
    """Parse locations by name, such as `fra=DE, iad=US:fedramp+hipaa, lab=DE@52.5/13.4/Berlin`. Raises ValueError."""
    locations: dict[str, Location] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, where = (word.strip() for word in part.partition("="))
        if not name or name in locations:
            raise ValueError("each location must have a unique name, as in fra=DE")
        locations[name] = parse_location(where)
    return locations


def parse_location(text: str) -> Location:
    """Parse a location such as `DE`, `US:fedramp+hipaa` or `DE@52.5/13.4/Berlin`. Raises ValueError."""
    text, _, point = text.partition("@")
    country, _, rest = text.partition(":")
    named = [name for name in rest.split("+") if name]
    if not _COUNTRY.fullmatch(country) or not all(_JURISDICTION.fullmatch(name) for name in named):
        raise ValueError(
            "a location must be a country of two capital letters, optionally with jurisdictions, as in US:fedramp+hipaa"
        )
    if wrong := sorted(name for name in named if name in _COUNTRIES_OF and country not in _COUNTRIES_OF[name]):
        raise ValueError(f"{country} is not in {wrong[0]}")
    given = {name for name, countries in _COUNTRIES_OF.items() if country in countries}
    location = Location(country, frozenset(given.union(named)))
    return _at_point(location, point) if point else location


def _at_point(location: Location, text: str) -> Location:
    """Return the location with the coordinates and the city of `52.5/13.4/Berlin`. Raises ValueError."""
    latitude, _, rest = text.partition("/")
    longitude, _, city = rest.partition("/")
    try:
        point = float(latitude), float(longitude)
    except ValueError:
        point = math.nan, math.nan
    if not (abs(point[0]) <= 90 and abs(point[1]) <= 180 and len(city) <= _MAX_CITY):
        raise ValueError("a point must be latitude/longitude/city in degrees, as in DE@52.5/13.4/Berlin")
    return replace(location, latitude=point[0], longitude=point[1], city=city.strip())
