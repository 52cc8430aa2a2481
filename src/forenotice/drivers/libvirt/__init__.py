"""Virtual machines under libvirt: connections to hosts, what a domain's XML says, and the driver."""

import os

from forenotice.core import errors

# The library reads it when it is loaded. Below that, it writes sentences of its own between the lines of our log.
os.environ.setdefault("LIBVIRT_DEBUG", "error")
try:
    import libvirt as _library  # noqa: F401 - whether it is there
except ImportError as error:
    raise errors.RefusedError(
        f"libvirt cannot be used ({error}): apt-get install libvirt-dev pkg-config gcc python3-dev, and then "
        "pip install 'forenotice[libvirt]'"
    ) from None
