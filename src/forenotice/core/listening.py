"""Who listens: a scope that nobody speaks for cannot be waited for."""

from dataclasses import replace
from datetime import datetime

from forenotice.core.draft import Draft
from forenotice.core.fleet import Listening, Scope
from forenotice.core.operations import Status
from forenotice.core.timing import Timing


def is_listening(scope: Scope, now: datetime, timing: Timing) -> bool:
    if scope.policy.listening is Listening.AUTO:
        return scope.last_heard is not None and now - scope.last_heard < timing.silence
    return scope.policy.listening is Listening.ALWAYS


def would_wake(scope: Scope, now: datetime, timing: Timing) -> bool:
    """Whether it starts to listen when it is heard."""
    return scope.policy.listening is Listening.AUTO and not is_listening(scope, now, timing)


def hear(draft: Draft, key: str, at: datetime) -> None:
    """A guest of the scope has asked: it listens from now on."""
    scope = draft.scope(key)
    if scope.last_heard is not None and scope.last_heard >= at:
        return
    was_listening = is_listening(scope, draft.now, draft.timing)
    draft.put_scope(replace(scope, last_heard=at))
    if not was_listening and is_listening(draft.scope(key), draft.now, draft.timing):
        draft.note("scope.listening", scope=key)
        withdraw_silence(draft, key)


def withdraw_silence(draft: Draft, key: str) -> None:
    """What silence had approved must now be approved by somebody, while it is still Scheduled."""
    for event in draft.live_events_in(key):
        if event.implied and event.status is Status.SCHEDULED:
            draft.put_event(replace(event, approved_at=None, approved_by=None, implied=False))
            draft.note("event.silence_withdrawn", scope=key, event=event.id, operation=event.operation)
            operation = draft.operation(event.operation)
            draft.put_operation(replace(operation, due_at=operation.not_before, held=False))
