"""The image with our agent: it is complete, which a directory shows as well as a guest."""

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from forenotice.lab import agent, image, packages
from forenotice.lab.image import ImageError


def unpacked(content: bytes, directory: Path) -> Path:
    directory.mkdir()
    command = [packages.program("busybox"), "cpio", "-idm"]
    subprocess.run(command, input=content, cwd=directory, check=False, capture_output=True)
    return directory


def test_the_agent_runs_where_nothing_else_is(needed: None, tmp_path: Path) -> None:
    plain, whole = tmp_path / "initrd.gz", tmp_path / "initrd-agent"
    image.write(plain)
    agent.write(whole, plain, prepare=1.5)
    python, _, rest = whole.read_bytes().rpartition(plain.read_bytes())
    assert rest == b""
    assert len(python) % 4 == 0
    root = unpacked(python, tmp_path / "root")
    unpacked(gzip.decompress(plain.read_bytes()), tmp_path / "base")
    subprocess.run(["cp", "-a", f"{tmp_path}/base/bin", root], check=True)
    enter = [packages.program("unshare"), "--user", "--map-root-user", f"--root={root}", "--wd=/"]
    done = subprocess.run(
        [*enter, "/etc/forenotice/run", "--help"], check=False, capture_output=True, text=True, env={}, timeout=60
    )
    if "Operation not permitted" in done.stderr and os.environ.get("CI") != "true":
        pytest.skip(f"user namespaces are not allowed here: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: forenotice agent run")
    assert "sleep 1.5" in (root / "etc/forenotice/agent.toml").read_text()


def test_libraries_that_cannot_be_listed(needed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ldd = tmp_path / "ldd"
    ldd.write_text("#!/bin/sh\necho no luck >&2\nexit 1\n")
    ldd.chmod(0o755)
    monkeypatch.setattr(packages, "PATH", str(tmp_path))
    with pytest.raises(ImageError, match="cannot be listed: ldd says 'no luck'"):
        agent.write(tmp_path / "initrd-agent", tmp_path / "initrd.gz", prepare=1)
