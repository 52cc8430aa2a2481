"""What a request that meets faults is answered."""

import math

from forenotice.core.documents import Document
from forenotice.emulator.faults import showing
from forenotice.emulator.faults.active import Active, Met
from forenotice.emulator.faults.showing import Shown
from forenotice.emulator.faults.table import Changes, Refuses, Says
from forenotice.metadata import answers
from forenotice.metadata.answers import Answer
from forenotice.wire.versions import Version


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
