"""TLS of the control plane, and where it can be done without."""

import ipaddress
import ssl
from pathlib import Path

from forenotice import secret_files
from forenotice.core import errors


def context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Of a certificate (with those between it and its CA, if there are any) and its key, both in PEM."""
    try:
        certificate.read_bytes()
    except OSError as error:
        raise errors.RefusedError(
            f"the control plane's certificate {certificate} cannot be read: {str(error.strerror).lower()}"
        ) from None
    secret_files.read(key, "the control plane's key", links=True)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2

    def password() -> str:
        raise errors.RefusedError(f"the key {key} is encrypted, and nobody is there to give its password: decrypt it")

    try:
        made.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise errors.RefusedError(f"the key {key} is not the one of the certificate {certificate}") from None
        raise errors.RefusedError(
            f"{certificate} and {key} are not a certificate and its key in PEM ({error.reason or error})"
        ) from None
    return made


def require(host: str, tls: ssl.SSLContext | None, *, without: bool) -> None:
    """Tokens cross no network in the clear, unless somebody says that it is meant."""
    if tls is None and not without and not is_loopback(host):
        raise errors.RefusedError(
            f"on {host} operators' tokens would cross the network unencrypted: give --control-certificate and "
            "--control-key, or --control-without-tls if something else encrypts them"
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
