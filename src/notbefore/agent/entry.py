"""The command line of `notbefore agent run`, without the libraries that the other commands use."""

import argparse
import os
import sys
from collections.abc import Sequence

from notbefore import settings
from notbefore.agent.config.file import ConfigError
from notbefore.agent.running import Agent
from notbefore.core import errors
from notbefore.settings import SettingError, table

DONE, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="notbefore agent run", description="Run the agent of this VM until SIGTERM.")
    for row in table.AGENT:
        parser.add_argument(row.flag, dest=row.name, metavar=row.metavar, help=row.described)
    flags = vars(parser.parse_args(arguments))
    try:
        Agent(settings.load_agent(flags, os.environ)).run()
    except (SettingError, ConfigError) as error:
        return _complain(error, USAGE)
    except errors.NotbeforeError as error:
        return _complain(error, FAILED)
    return DONE


def _complain(error: errors.NotbeforeError, code: int) -> int:
    sys.stderr.write(f"notbefore: {error.message}\n")
    return code
