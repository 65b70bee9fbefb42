"""Who may talk to whom: a certificate authority, a server's certificate, and the keys by which nodes are known."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def make_certificates(folder: Path, hosts: Sequence[str], *, days: int = 365) -> None:
    """Write a new authority (``ca.crt``, ``ca.key``) and a server certificate for these names and addresses."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer, subject = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("federation authority", hosts[0])
    )
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)

    def sign(name: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
        builder = x509.CertificateBuilder(issuer, name, key, x509.random_serial_number())
        builder = builder.not_valid_before(begin).not_valid_after(begin + datetime.timedelta(days=days))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(authority, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)

    signer = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    signs = x509.KeyUsage(**{use: use in ("key_cert_sign", "crl_sign") for use in USES})
    ca = sign(issuer, authority.public_key(), (x509.BasicConstraints(True, 0), True), (signs, True), (signer, False))
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    points = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer)
    server = sign(
        subject, own.public_key(), (x509.BasicConstraints(False, None), True), (names, False), (points, False)
    )
    (folder / "ca.crt").write_bytes(ca)
    (folder / "server.crt").write_bytes(server)
    _write_secret(folder / "ca.key", authority, serialization.PrivateFormat.PKCS8)
    _write_secret(folder / "server.key", own, serialization.PrivateFormat.PKCS8)


def server_hosts(folder: Path) -> list[str]:
    """Return the names and addresses for which the server certificate in a folder is valid."""
    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def make_key(folder: Path, name: str) -> None:
    """Write a node's key pair: ``name``, which only its machine needs to have, and ``name.pub`` to register."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(folder / name, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key that nobody else on the machine can read."""
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
