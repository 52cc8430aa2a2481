"""The lines that the demo prints, for each VM and each kind of listener."""

import re
import subprocess
import sys
from pathlib import Path

from forenotice import demo, settings
from forenotice.settings import Address

GUESTS = Address(host="127.0.0.1", port=8254)


def lines(at: Address | Path = GUESTS, once: str | None = None, /, **flags: object) -> tuple[list[str], str]:
    found = settings.load({"demo": True, "data": "/d", **flags}, {})
    text = demo.text(at, "127.0.0.1:8255", found, once)
    return re.findall(r"^  (.+)$", text, re.MULTILINE), text


def test_a_full_disk_does_not_end_the_service() -> None:
    code = """
import sys
from forenotice import settings, demo
at = settings.Address(host="127.0.0.1", port=8254)
demo.show(demo.text(at, "127.0.0.1:8255", settings.load({"demo": True}, {})))
sys.stdout.flush()
"""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run((sys.executable, "-c", code), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo.unwritten" in done.stderr


def test_the_link_that_signs_in_comes_first() -> None:
    typed, text = lines(GUESTS, "s3cret")
    assert typed[0] == "http://127.0.0.1:8255/sign-in?once=s3cret"
    assert typed[1].startswith("curl ")
    assert typed[1:] == lines()[0]
    assert "To start afresh: rm -r /d/demo\n" in text
    secured, _ = lines(GUESTS, "s3cret", control_certificate="/c", control_key="/k")
    assert secured[0] == "https://127.0.0.1:8255/sign-in?once=s3cret"


def test_which_vm_the_reader_is() -> None:
    typed, text = lines(GUESTS, None, **{"as": "db"})
    assert "You are db; as another VM" in text
    assert typed[1].endswith("forenotice vm restart db")
    typed, text = lines(metadata=["127.0.0.1:8254=pool_1"])
    assert "You are pool_1.\n" in text
    assert typed[1].endswith("forenotice vm restart pool_1")


def test_through_a_socket() -> None:
    typed, text = lines(Path("/run/a b.sock"), metadata=["unix:/run/a b.sock"])
    asked = [line for line in typed if line.startswith("curl")]
    assert len(asked) == 3
    assert all(line.startswith("curl --unix-socket '/run/a b.sock' -H Metadata:true") for line in asked)
    assert all("'http://localhost/metadata/" in line for line in asked)
    assert "--interface" not in text
    assert "forenotice guest" not in text
