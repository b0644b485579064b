"""Certificates for tests of mutual TLS: a new certificate authority, and a node and a gateway that it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificates(folder: Path) -> tuple[Path, tuple[Path, Path], tuple[Path, Path]]:
    """Return the certificate of a new authority, and (certificate, key) of a node on 127.0.0.1 and of a gateway."""

    now = datetime.now(UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, is_ca: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(ca_name if is_ca else subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )
        if is_ca:
            usage = dict.fromkeys(
                ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"], False
            )
            usage |= {"digital_signature": True, "key_cert_sign": True, "crl_sign": True, "decipher_only": False}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        else:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(ca_key, hashes.SHA256())

    def written(name: str, key: ec.EllipticCurvePrivateKey, is_ca: bool = False) -> tuple[Path, Path]:
        plain = serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        (folder / f"{name}.pem").write_bytes(certificate(name, key, is_ca).public_bytes(pem))
        (folder / f"{name}.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        return folder / f"{name}.pem", folder / f"{name}.key"

    ca, _ = written("ca", ca_key, is_ca=True)
    return (
        ca,
        written("node", ec.generate_private_key(ec.SECP256R1())),
        written("gateway", ec.generate_private_key(ec.SECP256R1())),
    )
