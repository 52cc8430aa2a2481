"""An agent like any other, but for the pauses between its polls, of which it makes none: as a process."""

import os
import sys

from forenotice import settings
from forenotice.agent.daemon import Agent
from forenotice.client import Pace

RESTLESS = Pace(
    interval=0, first_pause=0, longest_pause=0, longest_retry_after=0, timeout=5, first_timeout=5, at_once=0
)

if __name__ == "__main__":
    _, config, state = sys.argv
    Agent(
        settings.load_agent({"agent_config": config, "state": state, "log_format": "json"}, os.environ), RESTLESS
    ).run()
