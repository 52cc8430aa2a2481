"""What was typed is not usable: the caller's mistake, found before anybody was asked."""

from forenotice.core import errors


class UsageError(errors.RefusedError):
    """The command cannot be understood."""

    code = "usage"
