"""Virtual machines under libvirt: connections to hosts, what a domain's XML says, and the driver."""

from forenotice.core import errors

try:
    import libvirt as _library  # noqa: F401 - whether it is there
except ImportError as error:
    raise errors.RefusedError(f"libvirt cannot be used ({error}): pip install 'forenotice[libvirt]'") from None
