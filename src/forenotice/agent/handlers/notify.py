"""Messages to whatever apprise can reach. Runs only in a child process.

The URLs hold secrets, which apprise and the libraries below it might log: so they are silenced, and a sink is only
called by its number and its scheme.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import apprise

from forenotice import secretfiles
from forenotice.agent.handlers import Outcome, facts
from forenotice.agent.handlers.tables import Notify
from forenotice.core import errors

TRIES = 2
PAUSE = 1.0
"""Seconds between them."""
_SCHEME = re.compile(r"([a-z][a-z0-9]{0,15})://.", re.IGNORECASE | re.ASCII)


class SinksError(errors.RefusedError):
    """It is not clear where to send."""

    code = "sinks"


class Sink:
    def __init__(self, number: int, url: str) -> None:
        scheme = _SCHEME.match(url)
        self.title = f"number {number} ({scheme[1].lower() if scheme else 'no URL'})"
        self.told = False
        self._apprise = apprise.Apprise()
        self.usable = self._add(url)

    def tell(self, title: str, body: str) -> None:
        pause = threading.Event()
        for tries_left in reversed(range(TRIES)):
            self.told = self._tell(title, body)
            if self.told or not tries_left:
                return
            pause.wait(PAUSE)

    # Whatever a plugin may raise, and whatever that may quote: it concerns this sink alone.

    def _add(self, url: str) -> bool:
        try:
            return bool(self._apprise.add(url))
        except Exception:
            return False

    def _tell(self, title: str, body: str) -> bool:
        try:
            return bool(self._apprise.notify(body=body, title=title))
        except Exception:
            return False


def run(config: Notify, until: float) -> Outcome:
    known = {name: os.environ[name] for name in facts.NAMES if name in os.environ}
    title, body = (facts.fill(text, known) for text in (config.title, config.body))
    try:
        sinks = _sinks(config)
    except SinksError as error:
        return Outcome(ok=False, said=error.message)
    # Daemons, so that a sink that hangs keeps neither the others waiting nor the process from ending.
    threads = [
        threading.Thread(target=sink.tell, args=(title, body), name=f"sink {sink.title}", daemon=True)
        for sink in sinks
        if sink.usable
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    failed = [sink.title for sink in sinks if not sink.told]
    said = f"{len(sinks) - len(failed)} of {len(sinks)} sinks took it"
    return Outcome(ok=not failed, said=f"{said}; not {', '.join(failed)}" if failed else said)


def rehearse(config: Notify) -> Outcome:
    try:
        sinks = _sinks(config)
    except SinksError as error:
        return Outcome(ok=False, said=error.message)
    unusable = [sink.title for sink in sinks if not sink.usable]
    if unusable:
        return Outcome(ok=False, said=f"apprise cannot use {', '.join(unusable)}")
    return Outcome(ok=True, said=f"would tell {', '.join(sink.title for sink in sinks)}")


def _sinks(config: Notify) -> Sequence[Sink]:
    logging.disable()
    urls = [*config.urls, *_listed(config.urls_file)]
    if not urls:
        raise SinksError(f"{config.urls_file} lists no URL: give one on each line")
    return [Sink(number, url) for number, url in enumerate(urls, 1)]


def _listed(path: str) -> Sequence[str]:
    if not path:
        return ()
    try:
        lines = secretfiles.read(Path(path), "urls_file:").decode().splitlines()
    except errors.RefusedError as error:
        raise SinksError(error.message) from None
    except UnicodeDecodeError:
        raise SinksError(f"urls_file: {path} cannot be read: it is not UTF-8") from None
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
