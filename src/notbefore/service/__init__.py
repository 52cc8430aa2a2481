"""One function per use case, one transaction each."""

from notbefore.service.context import Service

__all__ = ["Service"]
