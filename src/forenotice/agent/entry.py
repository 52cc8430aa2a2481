"""The command line of `forenotice agent run`, without the libraries that the other commands use."""

import argparse
import os
import sys
from collections.abc import Sequence

from forenotice import settings
from forenotice.agent.running import Agent
from forenotice.core import errors
from forenotice.settings import table

DONE, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    if sys.stderr is None:
        # Closed by whoever started us: what is said goes nowhere.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    parser = argparse.ArgumentParser(prog="forenotice agent run", description="Run the agent of this VM until SIGTERM.")
    for row in table.AGENT:
        if row.is_switch:
            parser.add_argument(row.flag, dest=row.name, action="store_true", help=row.described)
        else:
            parser.add_argument(row.flag, dest=row.name, metavar=row.metavar, help=row.described)
    flags = vars(parser.parse_args(arguments))
    try:
        Agent(settings.load_agent(flags, os.environ)).run()
    except errors.RefusedError as error:
        return _complain(error, USAGE)
    except errors.ForenoticeError as error:
        return _complain(error, FAILED)
    return DONE


def _complain(error: errors.ForenoticeError, code: int) -> int:
    sys.stderr.write(f"forenotice: {error.message}\n")
    return code
