"""Which connection URIs a host may have for libvirt."""

import pytest

from forenotice.core import errors, libvirt_uri


@pytest.mark.parametrize(
    "uri",
    [
        "qemu:///system",
        "qemu:///session",
        "qemu+ssh://root@host-a.example:2222/system?keyfile=/etc/forenotice/id&no_tty=1",
        "qemu+tls://host-a/system?pkipath=/etc/pki",
        "qemu+unix:///system?socket=/run/lab/a",
        "test:///default",
    ],
)
def test_uris_that_are_allowed(uri: str) -> None:
    libvirt_uri.require(uri)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("", "not a libvirt URI"),
        ("10.0.0.1", "not a libvirt URI"),
        ("qemu:///" + "x" * 1000, "not a libvirt URI"),
        ("qemu://host\n/system", "not a libvirt URI"),
        ("qemu://[::/system", "not a libvirt URI"),
        ("qemu+ext:///system?command=/bin/sh", "no transport that is allowed"),
        ("QEMU+EXT:///system", "no transport that is allowed"),
        ("qemu+ssh://me:secret@a/system", "^this URI has a password, which libvirt does not use: give one such as "),
        ("qemu+ssh://a/system?command=/bin/sh", "names a program"),
        ("qemu+ssh://a/system?x=1;Comm%61nd=/bin/sh", "names a program"),
        ("qemu+ssh://a/system?netcat=/bin/sh", "names a program"),
        ("qemu:///embed?root=/srv", "would run QEMU within the service"),
    ],
)
def test_uris_that_are_not(uri: str, said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        libvirt_uri.require(uri)
