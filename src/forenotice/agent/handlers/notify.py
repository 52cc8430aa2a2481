"""`notify`: messages to whatever apprise can reach. Runs only in a child process.

The URLs hold secrets, which apprise and the libraries below it might log: so logging is disabled, and messages name a
sink by its number and scheme only.
"""

import logging
import os
import re
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import apprise

from forenotice import secret_files
from forenotice.agent.handlers import HandlerError, facts
from forenotice.agent.handlers.tables import Notify
from forenotice.core import errors
from forenotice.runtime import Runtime

ATTEMPTS = 2
PAUSE = 1.0
"""Seconds between them."""
_SCHEME = re.compile(r"([a-z][a-z0-9]{0,15})://.", re.IGNORECASE | re.ASCII)


class Sink:
    def __init__(self, number: int, url: str) -> None:
        scheme = _SCHEME.match(url)
        self.title = f"number {number} ({scheme[1].lower() if scheme else 'no URL'})"
        self.delivered = False
        self._apprise = apprise.Apprise()
        try:
            self.usable = bool(self._apprise.add(url))
        except Exception:
            # A plugin may raise anything, and quote the URL in it.
            self.usable = False

    def send(self, title: str, body: str) -> None:
        pause = threading.Event()
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                self.delivered = bool(self._apprise.notify(body=body, title=title))
            except Exception:
                self.delivered = False
            if self.delivered or not attempts_left:
                return
            pause.wait(PAUSE)


def run(config: Notify, until: float, runtime: Runtime) -> str:
    known = {name: os.environ[name] for name in facts.NAMES if name in os.environ}
    title, body = (facts.fill(text, known) for text in (config.title, config.body))
    sinks = _sinks(config)
    # In daemon threads, so that a sink that hangs delays neither the others nor the end of the process.
    threads = [
        runtime.start_thread(partial(sink.send, title, body), f"sink {sink.title}") for sink in sinks if sink.usable
    ]
    for thread in threads:
        thread.join(max(0.0, until - runtime.monotonic()))
    failed = [sink.title for sink in sinks if not sink.delivered]
    message = f"{len(sinks) - len(failed)} of {len(sinks)} sinks accepted it"
    if failed:
        raise HandlerError(f"{message}; not {', '.join(failed)}")
    return message


def rehearse(config: Notify) -> str:
    sinks = _sinks(config)
    if unusable := [sink.title for sink in sinks if not sink.usable]:
        raise HandlerError(f"apprise cannot use {', '.join(unusable)}")
    return f"would notify {', '.join(sink.title for sink in sinks)}"


def _sinks(config: Notify) -> Sequence[Sink]:
    logging.disable()
    urls = [*config.urls]
    if config.urls_file:
        try:
            lines = secret_files.read(Path(config.urls_file), "urls_file:").decode().splitlines()
        except errors.RefusedError as error:
            raise HandlerError(error.message) from None
        except UnicodeDecodeError:
            raise HandlerError(f"urls_file: {config.urls_file} cannot be read: it is not UTF-8") from None
        urls += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not urls:
        raise HandlerError(f"{config.urls_file} lists no URL: give one on each line")
    return [Sink(number, url) for number, url in enumerate(urls, 1)]
