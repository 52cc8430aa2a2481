"""Network namespaces for tests: each lives as long as a process of ours in it, and leaves nothing behind."""

import importlib.util
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SECONDS = 120


def require_namespaces(*commands: str) -> None:
    """Skips the test where there are none; under CI they must be there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    wanted = (["unshare", "--net", "true"], *(["sh", "-c", f"command -v {each}"] for each in ("ip", *commands)))
    for command in wanted:
        if subprocess.run(command, check=False, capture_output=True, env={**os.environ, "PATH": path}).returncode:
            assert os.environ.get("CI") != "true", f"this test needs root and {' '.join(command)}"
            pytest.skip(f"needs root and {' '.join(command)}")


def require_libvirt() -> None:
    """Skips the test where libvirt-python is not installed; under CI it must be."""
    if importlib.util.find_spec("libvirt") is None:
        assert os.environ.get("CI") != "true", "this test needs libvirt-python"
        pytest.skip("needs libvirt-python")


class Namespace:
    """Leads nowhere at first; its end takes its interfaces, addresses and rules along."""

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        self._env = {**os.environ, **(env or {}), "PATH": (env or {}).get("PATH", path)}
        # It reads until we close the pipe, so it ends when we are killed, too.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo made && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"made\n"
        self.run("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    @property
    def enter(self) -> tuple[str, ...]:
        """What stands before a command that runs in it."""
        return ("nsenter", f"--net={self.path}", "--")

    def run(self, *command: str, **how: Any) -> str:
        done = self.attempt(*command, **how)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def attempt(self, *command: str, **how: Any) -> "subprocess.CompletedProcess[str]":
        how = {"stdin": subprocess.DEVNULL, "timeout": SECONDS, **how}
        if "input" in how:
            del how["stdin"]
        return subprocess.run(
            [*self.enter, *command], check=False, capture_output=True, text=True, env=self._env, **how
        )

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait(SECONDS)
