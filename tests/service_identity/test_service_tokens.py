"""A service token proves its signer to the one it is for, here and now; what is forged, bent or borrowed does not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from service_identity import key_ring as service_ring
from service_identity import service_tokens
from service_identity.key_ring import UnsafeKeyFile
from service_identity.service_identity import ServiceIdentity
from service_identity.service_tokens import Forged, KnownKeys, PublicKey, Ring, Service
from tests.tenants.hand_clock import HandClock

NOW_S = 1_800_000_000
ORDER = 2**252 + 27742317777372353535851937790883648493  # of Ed25519's group
NONCES = (b"n" * 32, b"g" * 16)

PRIVATE = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
STRANGER = Ed25519PrivateKey.generate()


def row(private: Ed25519PrivateKey, subject: str, **fields: Any) -> PublicKey:
    public = service_ring.public_half(private)
    made = service_ring.public_key(public, subject, start_s=NOW_S - 1000, life_days=30, place=fields.pop("place", ""))
    return service_tokens.PublicKey(**{**{f: getattr(made, f) for f in made.__struct_fields__}, **fields})


KEY = row(PRIVATE, "node/n1", place="fra")
OTHER_KEY = row(OTHER, "node/n2")
RING = Ring("hearth-test", (KEY, OTHER_KEY))
HEADER = {"alg": "EdDSA", "kid": KEY.kid, "typ": service_tokens.TYPE}
CLAIMS = {
    "iss": "hearth-test", "sub": "node/n1", "aud": "gateway/g", "jti": "ab" * 16,
    "iat": NOW_S, "nbf": NOW_S, "exp": NOW_S + 60, "bind": "here",
}  # fmt: skip


def encoded(value: bytes | str | dict[str, Any]) -> str:
    if isinstance(value, dict):
        value = json.dumps(value)
    return base64.urlsafe_b64encode(value.encode() if isinstance(value, str) else value).rstrip(b"=").decode()


def forged(
    header: Any = HEADER, claims: Any = CLAIMS, sign: Callable[[bytes], bytes] = PRIVATE.sign, **changed: Any
) -> str:
    """A token with these, whole but for what is changed in its claims; None takes a claim away."""
    if changed:
        claims = {name: value for name, value in {**claims, **changed}.items() if value is not None}
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{encoded(sign(text.encode()))}"


def head(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in {**HEADER, **changed}.items() if value is not None}


def judged(token: str, ring: Ring = RING, now_s: float = NOW_S, binding: str = "here", kind: Any = "node") -> Any:
    known = KnownKeys(ring)
    return known.verify_token(token, audience="gateway/g", kinds={kind}, now_s=now_s, binding=binding)


GOOD = forged()
HEAD, BODY, SIGNATURE = GOOD.split(".")
RAW = base64.urlsafe_b64decode(SIGNATURE + "==")


def hmac_with(key: bytes) -> Callable[[bytes], bytes]:
    return lambda text: hmac.digest(key, text, hashlib.sha256)


def public_pem() -> bytes:
    return PRIVATE.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def other_spelling() -> str:
    """The same bytes: an Ed25519 signature's last character has four bits that say nothing."""
    last = SIGNATURE[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return f"{HEAD}.{BODY}.{SIGNATURE[:-1]}{alphabet[alphabet.index(last) ^ 1]}"


def malleable() -> str:
    """R as it is, S plus the order of the group: verifiers that do not bound S take both."""
    s = int.from_bytes(RAW[32:], "little") + ORDER
    return f"{HEAD}.{BODY}.{encoded(RAW[:32] + s.to_bytes(32, 'little'))}"


def elliptic(text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes

    return ec.generate_private_key(ec.SECP256R1()).sign(text, ec.ECDSA(hashes.SHA256()))


def repeated(name: str) -> str:
    return json.dumps(CLAIMS)[:-1] + f", {json.dumps(name)}: {json.dumps(CLAIMS[name])}}}"


JWK = {"kty": "OKP", "crv": "Ed25519", "x": encoded(STRANGER.public_key().public_bytes_raw())}

FORGED = {
    "alg none, no signature": (f"{encoded(head(alg='none'))}.{BODY}.", "form"),
    "alg none, our signature": (forged(head(alg="none")), "header"),
    "alg NONE in capitals": (forged(head(alg="NONE")), "header"),
    "HS256 with the public key as its secret": (
        forged(head(alg="HS256"), sign=hmac_with(PRIVATE.public_key().public_bytes_raw())),
        "header",
    ),
    "HS256 with the public key's PEM": (forged(head(alg="HS256"), sign=hmac_with(public_pem())), "header"),
    "HS256's signature under our alg": (forged(sign=hmac_with(public_pem())), "signature"),
    "ES256": (forged(head(alg="ES256"), sign=elliptic), "header"),
    "alg in other capitals": (forged(head(alg="eddsa")), "header"),
    "alg as a list": (forged(head(alg=["EdDSA"])), "header"),
    "no alg": (forged(head(alg=None)), "header"),
    "typ of any JWT": (forged(head(typ="JWT")), "header"),
    "no typ": (forged(head(typ=None)), "header"),
    "no kid": (forged(head(kid=None)), "header"),
    "unknown kid": (forged(head(kid="0" * 32), sign=STRANGER.sign), "key"),
    "kid of another service": (forged(head(kid=OTHER_KEY.kid)), "signature"),
    "kid as a path": (forged(head(kid="../../../../dev/null"), sign=hmac_with(b"")), "key"),
    "kid as a file": (forged(head(kid="/etc/passwd")), "key"),
    "kid as SQL": (forged(head(kid=f"x' UNION SELECT '{'0' * 64}' --")), "key"),
    "kid as a number": (forged(head(kid=0)), "key"),
    "kid as a list": (forged(head(kid=[KEY.kid])), "key"),
    "kid with a zero byte": (forged(head(kid=KEY.kid + "\0")), "key"),
    "kid in capitals": (forged(head(kid=KEY.kid.upper() + " ")), "key"),
    "a key of its own in jwk": (forged(head(jwk=JWK), sign=STRANGER.sign), "header"),
    "jwk beside the right signature": (forged(head(jwk=JWK)), "header"),
    "a key's address in jku": (forged(head(jku="https://example.com/keys"), sign=STRANGER.sign), "header"),
    "certificates' address in x5u": (forged(head(x5u="https://example.com/c"), sign=STRANGER.sign), "header"),
    "certificates in x5c": (forged(head(x5c=["AA=="])), "header"),
    "crit": (forged(head(crit=["exp"])), "header"),
    "b64 false": (forged(head(b64=False, crit=["b64"])), "header"),
    "header no object": (forged("[]"), "header"),
    "header no JSON": (forged("EdDSA"), "header"),
    "header with a name twice": (forged(json.dumps(HEADER)[:-1] + ', "alg": "EdDSA"}'), "header"),
    "signed by a stranger": (forged(sign=STRANGER.sign), "signature"),
    "signed by another node": (forged(sign=OTHER.sign), "signature"),
    "signature taken away": (f"{HEAD}.{BODY}.", "form"),
    "signature and its dot taken away": (f"{HEAD}.{BODY}", "form"),
    "signature cut": (f"{HEAD}.{BODY}.{encoded(RAW[:-3])}", "signature"),
    "signature of nothing but zeros": (f"{HEAD}.{BODY}.{encoded(bytes(64))}", "signature"),
    "signature with one bit turned": (f"{HEAD}.{BODY}.{encoded(bytes([RAW[0] ^ 1]) + RAW[1:])}", "signature"),
    "signature with S beyond the order": (malleable(), "signature"),
    "signature spelt otherwise": (other_spelling(), "form"),
    "claims changed after signing": (f"{HEAD}.{encoded({**CLAIMS, 'exp': NOW_S + 500})}.{SIGNATURE}", "signature"),
    "padding": (GOOD + "==", "form"),
    "alphabet of plain base64": (GOOD.replace("-", "+").replace("_", "/") + "/+", "form"),
    "a space before": (" " + GOOD, "form"),
    "a line's end behind": (GOOD + "\n", "form"),
    "a space inside": (f"{HEAD} .{BODY}.{SIGNATURE}", "form"),
    "a zero byte behind": (GOOD + "\0", "form"),
    "a fourth segment": (GOOD + ".AAAA", "form"),
    "no segments": ("", "form"),
    "dots alone": ("..", "form"),
    "letters beyond ASCII": (GOOD[:-1] + "é", "form"),
    "larger than a token is": (forged(jti="ab" * 16, extra="x" * 1024), "form"),
    "claims no object": (forged(claims="[]"), "claims"),
    "deeply nested claims": (forged(claims='{"iss":' + "[" * 300 + "]" * 300 + "}"), "claims"),
    "not a number": (forged(claims=json.dumps({**CLAIMS, "exp": float("nan")})), "claims"),
    "no issuer": (forged(iss=None), "claims"),
    "no subject": (forged(sub=None), "claims"),
    "no audience": (forged(aud=None), "claims"),
    "no end": (forged(exp=None), "claims"),
    "no beginning": (forged(nbf=None), "claims"),
    "no time of issue": (forged(iat=None), "claims"),
    "no id": (forged(jti=None), "claims"),
    "an id that is none": (forged(jti="1"), "claims"),
    "a claim more": (forged(admin="true"), "claims"),
    "the issuer twice": (forged(claims=repeated("iss")), "claims"),
    "the end twice": (forged(claims=repeated("exp")), "claims"),
    "end as a text": (forged(exp=str(NOW_S + 60)), "claims"),
    "end as a fraction": (forged(exp=NOW_S + 60.5), "claims"),
    "end as a bool": (forged(exp=True), "claims"),
    "end as a list": (forged(exp=[NOW_S + 60]), "claims"),
    "audience as a list with ours": (forged(aud=["gateway/g"]), "claims"),
    "subject as an object": (forged(sub={"name": "node/n1"}), "claims"),
    "another issuer": (forged(iss="hearth-other"), "issuer"),
    "another subject under its own key": (forged(sub="node/n2"), "subject"),
    "a gateway under a node's key": (forged(sub="gateway/g"), "subject"),
    "for another gateway": (forged(aud="gateway/h"), "audience"),
    "for a node": (forged(aud="node/n2"), "audience"),
    "for another connection": (forged(bind="there"), "binding"),
    "for no connection": (forged(bind=None), "binding"),
    "expired": (forged(iat=NOW_S - 120, nbf=NOW_S - 120, exp=NOW_S - 30), "time"),
    "not yet valid": (forged(nbf=NOW_S + 31, exp=NOW_S + 60), "time"),
    "issued in the future": (forged(iat=NOW_S + 31, exp=NOW_S + 60), "time"),
    "ends before it begins": (forged(nbf=NOW_S + 20, exp=NOW_S + 10), "time"),
    "lives too long": (forged(exp=NOW_S + 601), "time"),
    "lives too long by an early beginning": (forged(nbf=NOW_S - 600, exp=NOW_S + 60), "time"),
    "for ever": (forged(exp=2**62), "time"),
}


@pytest.mark.parametrize(("token", "reason"), FORGED.values(), ids=FORGED)
def test_a_forged_token_proves_nobody(token: str, reason: str):
    assert judged(token) == Forged(reason)  # type: ignore[arg-type]


def test_the_token_that_all_these_are_made_from_is_good():
    found = judged(GOOD)
    assert found == Service("node/n1", "node", "n1", "fra", KEY.kid, "ab" * 16, NOW_S + 60)
    assert judged(GOOD, kind="gateway") == Forged("subject")


def test_what_we_sign_is_good_and_of_the_ring_s_place_alone():
    token = service_tokens.sign(
        PRIVATE, KEY, issuer="hearth-test", audience="gateway/g", now_s=NOW_S + 0.9, binding="here"
    )
    assert len(token) <= service_tokens.MAX_TOKEN_BYTES
    assert judged(token).place == "fra"


@pytest.mark.parametrize(("now_s", "is_good"), [(-30, True), (-31, False), (89, True), (90, False)])
def test_clocks_may_differ_by_half_a_minute(now_s: int, is_good: bool):
    assert isinstance(judged(GOOD, now_s=NOW_S + now_s), Service) == is_good


def test_keys_count_from_their_beginning_to_their_end():
    for field, reason in (("not_before", NOW_S + 31), ("not_after", NOW_S), ("revoked_at", NOW_S - 5)):
        assert judged(GOOD, Ring("hearth-test", (row(PRIVATE, "node/n1", **{field: reason}),))) == Forged("key")
    assert isinstance(judged(GOOD, Ring("hearth-test", (row(PRIVATE, "node/n1", not_after=NOW_S + 1),))), Service)


def test_what_is_revoked_is_refused_though_the_token_was_good_before():
    """By key, by subject and by its own id; and what was proven with it does not hold any more."""
    found = judged(GOOD)
    assert KnownKeys(RING).is_still_valid(found, NOW_S + 9999)
    changes = (
        (service_ring.with_key_revoked(RING, KEY.kid, now_s=NOW_S), "key"),
        (service_ring.with_subject_revoked(RING, "node/n1", now_s=NOW_S), "key"),
        (Ring("hearth-test", RING.keys, {"node/n1": NOW_S}), "subject"),
        (service_ring.with_token_revoked(RING, "ab" * 16, now_s=NOW_S), "revoked"),
        (Ring("hearth-test", (OTHER_KEY,)), "key"),
    )
    for ring, reason in changes:
        assert judged(GOOD, ring) == Forged(reason)  # type: ignore[arg-type]
        assert not KnownKeys(ring).is_still_valid(found, NOW_S)
    revoked = service_ring.with_subject_revoked(RING, "node/n1", now_s=NOW_S)
    with pytest.raises(ValueError, match="revoked"):
        service_ring.with_key(revoked, row(STRANGER, "node/n1"))
    back = service_ring.with_key(service_ring.with_subject_reinstated(revoked, "node/n1"), row(STRANGER, "node/n1"))
    assert judged(GOOD, back) == Forged("key")
    assert isinstance(judged(forged(head(kid=service_ring.key_id(STRANGER)), sign=STRANGER.sign), back), Service)


def test_rings_that_make_no_sense_are_refused():
    for keys in (
        (KEY, KEY),
        (row(PRIVATE, "node/n1", kid="x"),),
        (row(PRIVATE, "node/n1", public="zz" * 32),),
        (PublicKey(KEY.kid, "node/", KEY.public, 0, 1),),
    ):
        with pytest.raises(ValueError):
            KnownKeys(Ring("hearth-test", keys))


# ── files, and a process that lives with them ──


class Desk:
    """A ring and the keys of one gateway and one node in files, and a clock moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        self.ring, self.keys = folder / "ring.json", folder / "keys"
        for subject, place in (("gateway/g", ""), ("node/n1", "fra")):
            self.change(service_ring.with_key, self.new_key(subject, place))

    @property
    def now_s(self) -> float:
        return self.clock.now().timestamp()

    def new_key(self, subject: str, place: str = "", start_s: float = 0) -> PublicKey:
        private = Ed25519PrivateKey.generate()
        service_ring.write_private_key(service_ring.folder_of(self.keys, subject), private)
        public = service_ring.public_half(private)
        return service_ring.public_key(public, subject, start_s=self.now_s + start_s, life_days=365, place=place)

    def change(self, how: Callable[..., Ring], *arguments: Any, **fields: Any) -> None:
        service_ring.change_ring(self.ring, lambda ring: how(ring, *arguments, **fields), now_s=self.now_s)

    def identity(self, subject: str) -> ServiceIdentity:
        kind, _ = service_tokens.parse_subject(subject)
        return ServiceIdentity(self.ring, service_ring.folder_of(self.keys, subject), kind, clock=self.clock)

    def pass_time(self, seconds: float = 1.0) -> None:
        self.clock.pass_time(seconds)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_rotation_needs_no_restart_and_leaves_no_gap(desk: Desk):
    """The new key is used from when it starts; what the old one signed counts until the overlap is over."""
    gateway, node = desk.identity("gateway/g"), desk.identity("node/n1")
    before = node.sign("gateway/g", NONCES)
    first = gateway.verify_token(before, {"node"}, NONCES)
    assert first is not None
    new = desk.new_key("node/n1", "fra", start_s=100)
    desk.change(service_ring.rotated, new, overlap_s=3600)
    desk.pass_time()
    still_old = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert still_old is not None
    assert still_old.kid == first.kid
    desk.pass_time(100)
    second = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert second is not None
    assert second.kid == new.kid
    assert gateway.is_still_valid(first)
    desk.pass_time(3600)
    assert not gateway.is_still_valid(first)
    assert gateway.is_still_valid(second)


def test_a_revocation_is_seen_within_a_second(desk: Desk):
    gateway, node = desk.identity("gateway/g"), desk.identity("node/n1")
    token = node.sign("gateway/g", NONCES)
    found = gateway.verify_token(token, {"node"}, NONCES)
    assert found is not None
    desk.change(service_ring.with_key_revoked, found.kid, now_s=desk.now_s)
    desk.pass_time()
    assert gateway.verify_token(token, {"node"}, NONCES) is None
    assert not gateway.is_still_valid(found)
    assert node.sign("gateway/g", NONCES) == ""


@pytest.mark.parametrize("jump_s", [3600, -86400])
def test_a_clock_that_jumps_breaks_nothing_that_was_proven(desk: Desk, jump_s: float):
    """Neither what is open nor, on the machine that jumped, what is proven next."""
    gateway, node = desk.identity("gateway/g"), desk.identity("node/n1")
    found = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert found is not None
    desk.clock.jump_wall(jump_s)
    desk.pass_time()
    assert gateway.is_still_valid(found)
    assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is not None


def test_a_token_of_no_connection_is_good_once(desk: Desk):
    gateway, node = desk.identity("gateway/g"), desk.identity("node/n1")
    token = gateway.sign("node/n1")
    assert node.verify_once(token, {"gateway"}) is not None
    assert node.verify_once(token, {"gateway"}) is None
    assert node.verify_once(gateway.sign("node/n1", NONCES), {"gateway"}) is None, "bound to a connection"
    assert node.verify_once(gateway.sign("node/n2"), {"gateway"}) is None, "for another node"


def test_a_ring_that_cannot_be_read_is_trusted_no_longer_than_a_quarter_of_an_hour(desk: Desk):
    gateway, node = desk.identity("gateway/g"), desk.identity("node/n1")
    content = desk.ring.read_bytes()
    for damage in (b"{", b"[]"):
        desk.ring.write_bytes(damage)
        desk.pass_time()
        assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is not None
    desk.ring.unlink()
    desk.pass_time()
    found = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert found is not None
    desk.pass_time(901)
    assert not gateway.is_still_valid(found)
    assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is None
    desk.ring.write_bytes(content)
    desk.pass_time()
    assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is not None


def test_files_that_others_could_read_or_change_are_refused(desk: Desk):
    (private,) = service_ring.folder_of(desk.keys, "node/n1").glob("*.pem")
    assert private.stat().st_mode & 0o777 == 0o600
    assert desk.ring.stat().st_mode & 0o777 == 0o644
    for path, mode, says in ((private, 0o640, "600"), (private, 0o604, "600"), (desk.ring, 0o664, "644")):
        kept = path.stat().st_mode & 0o777
        path.chmod(mode)
        with pytest.raises(UnsafeKeyFile, match=says):
            desk.identity("node/n1")
        path.chmod(kept)
    for content in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", _rsa_pem()):
        kept_bytes = private.read_bytes()
        private.write_bytes(content)
        with pytest.raises(UnsafeKeyFile) as told:
            desk.identity("node/n1")
        assert "AAAA" not in str(told.value)
        private.write_bytes(kept_bytes)
    with pytest.raises(UnsafeKeyFile, match="gateway"):
        ServiceIdentity(desk.ring, service_ring.folder_of(desk.keys, "node/n1"), "gateway")
    with pytest.raises(UnsafeKeyFile, match="found 0"):
        ServiceIdentity(desk.ring, desk.keys, "node")


def test_no_key_is_written_to_a_log(desk: Desk, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    node = desk.identity("node/n1")
    (private,) = service_ring.folder_of(desk.keys, "node/n1").glob("*.pem")
    secret = "".join(private.read_text().splitlines()[1:-1])
    desk.clock.pass_time(timedelta(days=360).total_seconds())
    token = node.sign("gateway/g")
    node.verify_token(token, {"gateway"})
    desk.pass_time(timedelta(days=10).total_seconds())
    assert node.sign("gateway/g") == ""
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "runs out" in logged
    assert "none of our service keys is good" in logged
    assert secret not in logged
    assert token not in logged


def test_revoked_tokens_are_forgotten_when_they_would_have_run_out(desk: Desk):
    desk.change(service_ring.with_token_revoked, "cd" * 16, now_s=desk.now_s)
    desk.pass_time(700)
    desk.change(service_ring.with_token_revoked, "ef" * 16, now_s=desk.now_s)
    assert list(service_ring.read_ring(desk.ring).ring.revoked_tokens) == ["ef" * 16]


def _rsa_pem() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
