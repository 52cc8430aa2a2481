"""Approvals of a live event that must be refused, in each version, and change nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forenotice.conformance.endpoint import approvals, clauses
from forenotice.conformance.endpoint.gates import FAULTS, NO_SUCH_VERSION
from forenotice.conformance.endpoint.questions import Question, post
from forenotice.wire.approvals import MAX_BODY
from forenotice.wire.versions import Version

Form = Callable[[Question, str], Question]


def _naming(*others: Callable[[], str]) -> Form:
    """The event, and something else behind it."""
    return lambda plain, event_id: replace(plain, body=approvals.body([event_id, *(other() for other in others)]))


def _asking(query: str) -> Form:
    return lambda plain, _: replace(plain, query=query)


FORMS: Sequence[tuple[str, Form]] = (
    ("header.required-on-post", lambda plain, _: FAULTS["header"](plain)),
    ("approval.all-or-nothing", _naming(approvals.unknown_id)),
    ("endpoint.proxy", lambda plain, _: FAULTS["proxy"](plain)),
    ("approval.version", _asking("")),
    ("approval.version", _asking(f"api-version={NO_SUCH_VERSION}")),
    ("approval.malformed", lambda plain, _: replace(plain, body=(plain.body or b"") + b"garbage")),
    ("approval.too-large", lambda plain, _: replace(plain, body=approvals.padded(plain.body or b"", MAX_BODY + 1))),
    ("header.required-on-post", lambda plain, _: plain.having(Metadata="false")),
    ("endpoint.repeated", lambda plain, _: replace(plain, query=f"{plain.query}&{plain.query}")),
    (
        "approval.all-or-nothing",
        lambda plain, event_id: replace(plain, body=approvals.body([approvals.unknown_id(), event_id])),
    ),
    ("approval.all-or-nothing", _naming(lambda: "x")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    clause: str
    version: Version
    form: Form

    def question(self, event_id: str) -> Question:
        return self.form(post(self.version.name, approvals.body([event_id])), event_id)


def everything(versions: Sequence[Version]) -> Iterator[Refused]:
    """What matters most first: a short notice may end before all have been sent."""
    for clause, form in FORMS:
        concerned = [version for version in versions if clauses.BY_ID[clause].versions(version)]
        # What has nothing to do with versions is asked in one.
        for version in concerned or versions[-1:]:
            yield Refused(clause=clause, version=version, form=form)
