"""What `serve --demo` prints: the lines to try next."""

import shlex
from collections.abc import Iterator

from notbefore.settings import Settings, table

DEFAULT_CONTROL = "127.0.0.1:8255"


def show(guests_at: str, operators_at: str, settings: Settings) -> None:
    url = f"http://{guests_at}/metadata/scheduledevents?api-version=2020-07-01"
    prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in _variables(operators_at, settings))
    print(
        f"""
notbefore serves a demo fleet: guests at http://{guests_at}, operators at http://{operators_at}.
You are {settings.as_vm}; as another VM: curl --interface 127.1.0.21 ... is pool_1.

In another terminal (. .venv/bin/activate first), try:

  curl -H Metadata:true '{url}'
  {prefix}notbefore vm restart web-0
  curl -H Metadata:true '{url}'
  {prefix}notbefore event list
  {prefix}notbefore event explain ID
  NOTBEFORE_ENDPOINT=http://{guests_at} notbefore guest events
  curl -H Metadata:true -d '{{"StartRequests":[{{"EventId":"ID"}}]}}' '{url}'

with the ID that `event list` shows. The event becomes Started at once and vanishes when the restart is done.
The administrator's token is in {settings.token_file}. Ctrl-C ends it.
""",
        flush=True,
    )


def _variables(operators_at: str, settings: Settings) -> Iterator[tuple[str, str]]:
    """What a command in another terminal cannot know by itself."""
    if operators_at != DEFAULT_CONTROL:
        yield "NOTBEFORE_CONTROL", f"http://{operators_at}"
    if settings.data != table.DATA.read(table.DATA.default or ""):
        yield table.DATA.variable, str(settings.data.absolute())
