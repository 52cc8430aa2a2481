"""Real hosts and guests: without what they need, these tests are left out, and fail in CI."""

import importlib.util
import os

from tests import needed

from forenotice.lab import image, packages

collect_ignore_glob = [] if importlib.util.find_spec("libvirt") or os.environ.get("CI") == "true" else ["test_*.py"]


def pytest_runtest_setup() -> None:
    needed.require(packages.require)
    needed.require(image.find_kernel)
