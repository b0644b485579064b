"""Service tokens, the key ring and the identity of a process: valid tokens are accepted, all others rejected."""

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
ORDER = 2**252 + 27742317777372353535851937790883648493  # order of Ed25519's group
NONCES = (b"n" * 32, b"g" * 16)

PRIVATE = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
UNKNOWN_KEY = Ed25519PrivateKey.generate()


def row(private: Ed25519PrivateKey, subject: str, **fields: Any) -> PublicKey:
    public = service_ring.public_half(private)
    made = service_ring.public_key(public, subject, start_s=NOW_S - 1000, life_days=30, pop=fields.pop("pop", ""))
    return service_tokens.PublicKey(**{**{f: getattr(made, f) for f in made.__struct_fields__}, **fields})


KEY = row(PRIVATE, "node/n1", pop="fra")
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


def make_token(
    header: Any = HEADER, claims: Any = CLAIMS, sign: Callable[[bytes], bytes] = PRIVATE.sign, **changed: Any
) -> str:
    """Return a correctly signed token with this header and claims. `changed` replaces claims; None removes one."""
    if changed:
        claims = {name: value for name, value in {**claims, **changed}.items() if value is not None}
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{encoded(sign(text.encode()))}"


def header_with(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in {**HEADER, **changed}.items() if value is not None}


def verify(token: str, ring: Ring = RING, now_s: float = NOW_S, binding: str = "here", kind: Any = "node") -> Any:
    known = KnownKeys(ring)
    return known.verify_token(token, audience="gateway/g", kinds={kind}, now_s=now_s, binding=binding)


GOOD = make_token()
HEAD, BODY, SIGNATURE = GOOD.split(".")
RAW = base64.urlsafe_b64decode(SIGNATURE + "==")


def hmac_with(key: bytes) -> Callable[[bytes], bytes]:
    return lambda text: hmac.digest(key, text, hashlib.sha256)


def public_pem() -> bytes:
    return PRIVATE.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def noncanonical_signature() -> str:
    """Return the token with its signature encoded differently: four bits of the last character are not used."""
    last = SIGNATURE[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return f"{HEAD}.{BODY}.{SIGNATURE[:-1]}{alphabet[alphabet.index(last) ^ 1]}"


def signature_plus_group_order() -> str:
    """Return the token with the group order added to S; a verifier that does not bound S accepts both."""
    s = int.from_bytes(RAW[32:], "little") + ORDER
    return f"{HEAD}.{BODY}.{encoded(RAW[:32] + s.to_bytes(32, 'little'))}"


def elliptic(text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes

    return ec.generate_private_key(ec.SECP256R1()).sign(text, ec.ECDSA(hashes.SHA256()))


def repeated(name: str) -> str:
    return json.dumps(CLAIMS)[:-1] + f", {json.dumps(name)}: {json.dumps(CLAIMS[name])}}}"


JWK = {"kty": "OKP", "crv": "Ed25519", "x": encoded(UNKNOWN_KEY.public_key().public_bytes_raw())}

FORGED = {
    "alg none, no signature": (f"{encoded(header_with(alg='none'))}.{BODY}.", "form"),
    "alg none, our signature": (make_token(header_with(alg="none")), "header"),
    "alg NONE in capitals": (make_token(header_with(alg="NONE")), "header"),
    "HS256 with the public key as its secret": (
        make_token(header_with(alg="HS256"), sign=hmac_with(PRIVATE.public_key().public_bytes_raw())),
        "header",
    ),
    "HS256 with the public key's PEM": (make_token(header_with(alg="HS256"), sign=hmac_with(public_pem())), "header"),
    "HS256's signature under our alg": (make_token(sign=hmac_with(public_pem())), "signature"),
    "ES256": (make_token(header_with(alg="ES256"), sign=elliptic), "header"),
    "alg in other capitals": (make_token(header_with(alg="eddsa")), "header"),
    "alg as a list": (make_token(header_with(alg=["EdDSA"])), "header"),
    "no alg": (make_token(header_with(alg=None)), "header"),
    "typ of any JWT": (make_token(header_with(typ="JWT")), "header"),
    "no typ": (make_token(header_with(typ=None)), "header"),
    "no kid": (make_token(header_with(kid=None)), "header"),
    "unknown kid": (make_token(header_with(kid="0" * 32), sign=UNKNOWN_KEY.sign), "key"),
    "kid of another service": (make_token(header_with(kid=OTHER_KEY.kid)), "signature"),
    "kid as a path": (make_token(header_with(kid="../../../../dev/null"), sign=hmac_with(b"")), "key"),
    "kid as a file": (make_token(header_with(kid="/etc/passwd")), "key"),
    "kid as SQL": (make_token(header_with(kid=f"x' UNION SELECT '{'0' * 64}' --")), "key"),
    "kid as a number": (make_token(header_with(kid=0)), "key"),
    "kid as a list": (make_token(header_with(kid=[KEY.kid])), "key"),
    "kid with a zero byte": (make_token(header_with(kid=KEY.kid + "\0")), "key"),
    "kid in capitals": (make_token(header_with(kid=KEY.kid.upper() + " ")), "key"),
    "a key of its own in jwk": (make_token(header_with(jwk=JWK), sign=UNKNOWN_KEY.sign), "header"),
    "jwk beside the right signature": (make_token(header_with(jwk=JWK)), "header"),
    "a key's address in jku": (
        make_token(header_with(jku="https://example.com/keys"), sign=UNKNOWN_KEY.sign),
        "header",
    ),
    "certificates' address in x5u": (
        make_token(header_with(x5u="https://example.com/c"), sign=UNKNOWN_KEY.sign),
        "header",
    ),
    "certificates in x5c": (make_token(header_with(x5c=["AA=="])), "header"),
    "crit": (make_token(header_with(crit=["exp"])), "header"),
    "b64 false": (make_token(header_with(b64=False, crit=["b64"])), "header"),
    "header no object": (make_token("[]"), "header"),
    "header no JSON": (make_token("EdDSA"), "header"),
    "header with a name twice": (make_token(json.dumps(HEADER)[:-1] + ', "alg": "EdDSA"}'), "header"),
    "signed by an unknown key": (make_token(sign=UNKNOWN_KEY.sign), "signature"),
    "signed by another node": (make_token(sign=OTHER.sign), "signature"),
    "signature removed": (f"{HEAD}.{BODY}.", "form"),
    "signature and its dot removed": (f"{HEAD}.{BODY}", "form"),
    "signature cut": (f"{HEAD}.{BODY}.{encoded(RAW[:-3])}", "signature"),
    "signature of nothing but zeros": (f"{HEAD}.{BODY}.{encoded(bytes(64))}", "signature"),
    "signature with one bit turned": (f"{HEAD}.{BODY}.{encoded(bytes([RAW[0] ^ 1]) + RAW[1:])}", "signature"),
    "signature with S beyond the order": (signature_plus_group_order(), "signature"),
    "signature spelt otherwise": (noncanonical_signature(), "form"),
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
    "larger than a token is": (make_token(jti="ab" * 16, extra="x" * 1024), "form"),
    "claims no object": (make_token(claims="[]"), "claims"),
    "deeply nested claims": (make_token(claims='{"iss":' + "[" * 300 + "]" * 300 + "}"), "claims"),
    "not a number": (make_token(claims=json.dumps({**CLAIMS, "exp": float("nan")})), "claims"),
    "no issuer": (make_token(iss=None), "claims"),
    "no subject": (make_token(sub=None), "claims"),
    "no audience": (make_token(aud=None), "claims"),
    "no end": (make_token(exp=None), "claims"),
    "no beginning": (make_token(nbf=None), "claims"),
    "no time of issue": (make_token(iat=None), "claims"),
    "no id": (make_token(jti=None), "claims"),
    "an id that is none": (make_token(jti="1"), "claims"),
    "a claim more": (make_token(admin="true"), "claims"),
    "the issuer twice": (make_token(claims=repeated("iss")), "claims"),
    "the end twice": (make_token(claims=repeated("exp")), "claims"),
    "end as a text": (make_token(exp=str(NOW_S + 60)), "claims"),
    "end as a fraction": (make_token(exp=NOW_S + 60.5), "claims"),
    "end as a bool": (make_token(exp=True), "claims"),
    "end as a list": (make_token(exp=[NOW_S + 60]), "claims"),
    "audience as a list with ours": (make_token(aud=["gateway/g"]), "claims"),
    "subject as an object": (make_token(sub={"name": "node/n1"}), "claims"),
    "another issuer": (make_token(iss="hearth-other"), "issuer"),
    "another subject under its own key": (make_token(sub="node/n2"), "subject"),
    "a gateway under a node's key": (make_token(sub="gateway/g"), "subject"),
    "for another gateway": (make_token(aud="gateway/h"), "audience"),
    "for a node": (make_token(aud="node/n2"), "audience"),
    "for another connection": (make_token(bind="there"), "binding"),
    "for no connection": (make_token(bind=None), "binding"),
    "expired": (make_token(iat=NOW_S - 120, nbf=NOW_S - 120, exp=NOW_S - 30), "time"),
    "not yet valid": (make_token(nbf=NOW_S + 31, exp=NOW_S + 60), "time"),
    "issued in the future": (make_token(iat=NOW_S + 31, exp=NOW_S + 60), "time"),
    "ends before it begins": (make_token(nbf=NOW_S + 20, exp=NOW_S + 10), "time"),
    "lives too long": (make_token(exp=NOW_S + 601), "time"),
    "lives too long by an early beginning": (make_token(nbf=NOW_S - 600, exp=NOW_S + 60), "time"),
    "for ever": (make_token(exp=2**62), "time"),
}


@pytest.mark.parametrize(("token", "reason"), FORGED.values(), ids=FORGED)
def test_forged_token_is_rejected_with_its_reason(token: str, reason: str):
    assert verify(token) == Forged(reason)  # type: ignore[arg-type]


def test_unchanged_token_is_accepted():
    found = verify(GOOD)
    assert found == Service("node/n1", "node", "n1", "fra", KEY.kid, "ab" * 16, NOW_S + 60)
    assert verify(GOOD, kind="gateway") == Forged("subject")


def test_signed_token_is_accepted_and_has_the_pop_of_the_ring():
    token = service_tokens.sign(
        PRIVATE, KEY, issuer="hearth-test", audience="gateway/g", now_s=NOW_S + 0.9, binding="here"
    )
    assert len(token) <= service_tokens.MAX_TOKEN_BYTES
    assert verify(token).pop == "fra"


@pytest.mark.parametrize(("now_s", "is_good"), [(-30, True), (-31, False), (89, True), (90, False)])
def test_clocks_may_differ_by_30_seconds(now_s: int, is_good: bool):
    assert isinstance(verify(GOOD, now_s=NOW_S + now_s), Service) == is_good


def test_key_is_accepted_only_within_its_validity_period():
    for field, reason in (("not_before", NOW_S + 31), ("not_after", NOW_S), ("revoked_at", NOW_S - 5)):
        assert verify(GOOD, Ring("hearth-test", (row(PRIVATE, "node/n1", **{field: reason}),))) == Forged("key")
    assert isinstance(verify(GOOD, Ring("hearth-test", (row(PRIVATE, "node/n1", not_after=NOW_S + 1),))), Service)


def test_revoked_key_subject_or_token_is_rejected_and_ends_verified_services():
    """Revocation by key, by subject and by token id. Services that were verified before are no longer valid."""
    found = verify(GOOD)
    assert KnownKeys(RING).is_still_valid(found, NOW_S + 9999)
    changes = (
        (service_ring.with_key_revoked(RING, KEY.kid, now_s=NOW_S), "key"),
        (service_ring.with_subject_revoked(RING, "node/n1", now_s=NOW_S), "key"),
        (Ring("hearth-test", RING.keys, {"node/n1": NOW_S}), "subject"),
        (service_ring.with_token_revoked(RING, "ab" * 16, now_s=NOW_S), "revoked"),
        (Ring("hearth-test", (OTHER_KEY,)), "key"),
    )
    for ring, reason in changes:
        assert verify(GOOD, ring) == Forged(reason)  # type: ignore[arg-type]
        assert not KnownKeys(ring).is_still_valid(found, NOW_S)
    revoked = service_ring.with_subject_revoked(RING, "node/n1", now_s=NOW_S)
    with pytest.raises(ValueError, match="revoked"):
        service_ring.with_key(revoked, row(UNKNOWN_KEY, "node/n1"))
    back = service_ring.with_key(service_ring.with_subject_reinstated(revoked, "node/n1"), row(UNKNOWN_KEY, "node/n1"))
    assert verify(GOOD, back) == Forged("key")
    assert isinstance(
        verify(make_token(header_with(kid=service_ring.key_id(UNKNOWN_KEY)), sign=UNKNOWN_KEY.sign), back), Service
    )


def test_inconsistent_ring_is_rejected():
    for keys in (
        (KEY, KEY),
        (row(PRIVATE, "node/n1", kid="x"),),
        (row(PRIVATE, "node/n1", public="zz" * 32),),
        (PublicKey(KEY.kid, "node/", KEY.public, 0, 1),),
    ):
        with pytest.raises(ValueError):
            KnownKeys(Ring("hearth-test", keys))


# Tests of files and of a running process


class KeyFiles:
    """A ring and the keys of one gateway and one node in files, with a clock that is advanced by hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        self.ring, self.keys = folder / "ring.json", folder / "keys"
        for subject, pop in (("gateway/g", ""), ("node/n1", "fra")):
            self.change(service_ring.with_key, self.new_key(subject, pop))

    @property
    def now_s(self) -> float:
        return self.clock.now().timestamp()

    def new_key(self, subject: str, pop: str = "", start_s: float = 0) -> PublicKey:
        private = Ed25519PrivateKey.generate()
        service_ring.write_private_key(service_ring.folder_of(self.keys, subject), private)
        public = service_ring.public_half(private)
        return service_ring.public_key(public, subject, start_s=self.now_s + start_s, life_days=365, pop=pop)

    def change(self, how: Callable[..., Ring], *arguments: Any, **fields: Any) -> None:
        service_ring.change_ring(self.ring, lambda ring: how(ring, *arguments, **fields), now_s=self.now_s)

    def identity(self, subject: str) -> ServiceIdentity:
        kind, _ = service_tokens.parse_subject(subject)
        return ServiceIdentity(self.ring, service_ring.folder_of(self.keys, subject), kind, clock=self.clock)

    def pass_time(self, seconds: float = 1.0) -> None:
        self.clock.pass_time(seconds)


@pytest.fixture
def key_files(tmp_path: Path) -> KeyFiles:
    return KeyFiles(tmp_path)


def test_rotated_key_is_used_without_restart_and_overlaps_the_old_key(key_files: KeyFiles):
    """The new key signs from its start; tokens of the old key are accepted until the overlap ends."""
    gateway, node = key_files.identity("gateway/g"), key_files.identity("node/n1")
    before = node.sign("gateway/g", NONCES)
    first = gateway.verify_token(before, {"node"}, NONCES)
    assert first is not None
    new = key_files.new_key("node/n1", "fra", start_s=100)
    key_files.change(service_ring.rotated, new, overlap_s=3600)
    key_files.pass_time()
    still_old = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert still_old is not None
    assert still_old.kid == first.kid
    key_files.pass_time(100)
    second = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert second is not None
    assert second.kid == new.kid
    assert gateway.is_still_valid(first)
    key_files.pass_time(3600)
    assert not gateway.is_still_valid(first)
    assert gateway.is_still_valid(second)


def test_revocation_takes_effect_within_a_second(key_files: KeyFiles):
    gateway, node = key_files.identity("gateway/g"), key_files.identity("node/n1")
    token = node.sign("gateway/g", NONCES)
    found = gateway.verify_token(token, {"node"}, NONCES)
    assert found is not None
    key_files.change(service_ring.with_key_revoked, found.kid, now_s=key_files.now_s)
    key_files.pass_time()
    assert gateway.verify_token(token, {"node"}, NONCES) is None
    assert not gateway.is_still_valid(found)
    assert node.sign("gateway/g", NONCES) == ""


@pytest.mark.parametrize("jump_s", [3600, -86400])
def test_clock_jump_invalidates_neither_verified_services_nor_new_tokens(key_files: KeyFiles, jump_s: float):
    """The clock of one machine jumps: open connections stay valid there, and new tokens are accepted."""
    gateway, node = key_files.identity("gateway/g"), key_files.identity("node/n1")
    found = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert found is not None
    key_files.clock.jump_wall(jump_s)
    key_files.pass_time()
    assert gateway.is_still_valid(found)
    assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is not None


def test_unbound_token_is_accepted_once(key_files: KeyFiles):
    gateway, node = key_files.identity("gateway/g"), key_files.identity("node/n1")
    token = gateway.sign("node/n1")
    assert node.verify_once(token, {"gateway"}) is not None
    assert node.verify_once(token, {"gateway"}) is None
    assert node.verify_once(gateway.sign("node/n1", NONCES), {"gateway"}) is None, "bound to a connection"
    assert node.verify_once(gateway.sign("node/n2"), {"gateway"}) is None, "for another node"


def test_unreadable_ring_remains_valid_for_15_minutes(key_files: KeyFiles):
    gateway, node = key_files.identity("gateway/g"), key_files.identity("node/n1")
    content = key_files.ring.read_bytes()
    for damage in (b"{", b"[]"):
        key_files.ring.write_bytes(damage)
        key_files.pass_time()
        assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is not None
    key_files.ring.unlink()
    key_files.pass_time()
    found = gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES)
    assert found is not None
    key_files.pass_time(901)
    assert not gateway.is_still_valid(found)
    assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is None
    key_files.ring.write_bytes(content)
    key_files.pass_time()
    assert gateway.verify_token(node.sign("gateway/g", NONCES), {"node"}, NONCES) is not None


def test_key_files_accessible_to_other_users_or_invalid_are_rejected(key_files: KeyFiles):
    (private,) = service_ring.folder_of(key_files.keys, "node/n1").glob("*.pem")
    assert private.stat().st_mode & 0o777 == 0o600
    assert key_files.ring.stat().st_mode & 0o777 == 0o644
    for path, mode, says in ((private, 0o640, "600"), (private, 0o604, "600"), (key_files.ring, 0o664, "644")):
        original_mode = path.stat().st_mode & 0o777
        path.chmod(mode)
        with pytest.raises(UnsafeKeyFile, match=says):
            key_files.identity("node/n1")
        path.chmod(original_mode)
    for content in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", _rsa_pem()):
        kept_bytes = private.read_bytes()
        private.write_bytes(content)
        with pytest.raises(UnsafeKeyFile) as error_info:
            key_files.identity("node/n1")
        assert "AAAA" not in str(error_info.value)
        private.write_bytes(kept_bytes)
    with pytest.raises(UnsafeKeyFile, match="gateway"):
        ServiceIdentity(key_files.ring, service_ring.folder_of(key_files.keys, "node/n1"), "gateway")
    with pytest.raises(UnsafeKeyFile, match="found 0"):
        ServiceIdentity(key_files.ring, key_files.keys, "node")


def test_private_keys_and_tokens_are_never_logged(key_files: KeyFiles, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG")
    node = key_files.identity("node/n1")
    (private,) = service_ring.folder_of(key_files.keys, "node/n1").glob("*.pem")
    secret = "".join(private.read_text().splitlines()[1:-1])
    key_files.clock.pass_time(timedelta(days=360).total_seconds())
    token = node.sign("gateway/g")
    node.verify_token(token, {"gateway"})
    key_files.pass_time(timedelta(days=10).total_seconds())
    assert node.sign("gateway/g") == ""
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "expires soon" in logged
    assert "this service has no valid service key" in logged
    assert secret not in logged
    assert token not in logged


def test_token_revocations_are_dropped_after_the_longest_token_lifetime(key_files: KeyFiles):
    key_files.change(service_ring.with_token_revoked, "cd" * 16, now_s=key_files.now_s)
    key_files.pass_time(700)
    key_files.change(service_ring.with_token_revoked, "ef" * 16, now_s=key_files.now_s)
    assert list(service_ring.read_ring(key_files.ring).ring.revoked_tokens) == ["ef" * 16]


def _rsa_pem() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
