"""What a request that meets faults is answered."""

import math

from notbefore.core.documents import Document
from notbefore.emulator.faults import showing
from notbefore.emulator.faults.active import Active, Met
from notbefore.emulator.faults.showing import Shown
from notbefore.emulator.faults.table import Changes, Refuses, Says
from notbefore.metadata import answers
from notbefore.metadata.answers import Answer
from notbefore.wire.versions import Version


def instead(active: Active) -> Answer | None:
    """In place of the endpoint's answer; None: nothing, the connection is reset."""
    match active.fault.effect:
        case Refuses(retry=True) as effect:
            return answers.retry(effect.status, effect.message, math.ceil(active.amount.total_seconds()))
        case Refuses() as effect:
            return answers.error(effect.status, effect.message)
        case Says(status=status, body=body):
            return answers.whole(status, body)
    return None


def changed(met: Met, document: Document, version: Version, condition: str | None) -> tuple[Answer, int]:
    """The document as a poll is shown it, and how many bytes of it are missing at the end."""
    shown = Shown(document=document, version=version)
    for active in met.changing:
        assert isinstance(active.fault.effect, Changes)
        shown = active.fault.effect.document(shown, active.began, active.amount)
    return showing.answer(shown, condition)
