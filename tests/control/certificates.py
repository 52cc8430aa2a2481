"""Certificates of a CA that only these tests know."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    ca: Path
    file: Path
    key: Path


def make(directory: Path, *addresses: str) -> Certificate:
    """For localhost and these addresses."""
    ca, ca_key = directory / "ca.pem", directory / "ca-key.pem"
    made = Certificate(ca=ca, file=directory / "certificate.pem", key=directory / "key.pem")
    names = ",".join(["DNS:localhost", *(f"IP:{address}" for address in addresses)])
    common = ("openssl", "req", "-x509", "-days", "2", *KEY)
    _run(*common, "-subj", "/CN=a private CA", "-keyout", str(ca_key), "-out", str(ca))
    signed = ("-CA", str(ca), "-CAkey", str(ca_key), "-addext", f"subjectAltName={names}")
    leaf = ("-addext", "basicConstraints=critical,CA:FALSE")
    _run(*common, "-subj", "/CN=localhost", *signed, *leaf, "-keyout", str(made.key), "-out", str(made.file))
    return made


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
