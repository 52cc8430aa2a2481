"""Judging an endpoint from beginning to end."""

from collections.abc import Mapping

from forenotice.client.discovery import Candidate
from forenotice.conformance.endpoint import approvals, checks
from forenotice.conformance.endpoint.clauses import Needs
from forenotice.conformance.endpoint.documents import Document
from forenotice.conformance.endpoint.http import Lost, Response, get
from forenotice.conformance.endpoint.lifecycle import Lifecycle
from forenotice.conformance.endpoint.session import Options, Progress, Session
from forenotice.conformance.report import Report
from forenotice.core import errors
from forenotice.wire.versions import Version


def judge(endpoint: Candidate, options: Options, progress: Progress) -> Report:
    session = Session(endpoint, options, progress)
    progress("waiting for the first answer")
    first = session.http.send_once(get(session.newest.name), options.pace.first)
    if not first.status:
        raise errors.UnavailableError(f"{endpoint.url} cannot be judged: {first.problem}")
    try:
        _limit_versions(session, first)
        if served := _served(session):
            _judge_served(session, served, options)
    except Lost as lost:
        session.judge("endpoint.get", options.versions[-1], False, "answers to the end", lost, lost.response)
        session.unseen = dict.fromkeys(Needs, str(lost))
    return session.report(endpoint.url)


def _limit_versions(session: Session, first: Response) -> None:
    """Without those at the end that are newer than the endpoint."""
    known = list(session.versions)
    while known and first.status in (400, 404):
        known.pop()
        first = session.http.send_once(get(known[-1].name)) if known else first
    for version in session.versions[len(known) :] if known else ():
        session.skip_all(version, f"the endpoint knows no version after {known[-1].name}")
    session.versions = known or session.versions


def _served(session: Session) -> Mapping[Version, Document]:
    """By version, oldest first, as far as there is a document."""
    found = {version: session.fetch(version) for version in reversed(session.versions)}
    for version, document in found.items():
        if document is None:
            session.skip_all(version, "there is no document in this version")
    return {version: document for version in session.versions if (document := found[version]) is not None}


def _judge_served(session: Session, served: Mapping[Version, Document], options: Options) -> None:
    progress = session.http.progress
    for version in served:
        progress(f"{version.name}: what is let in and what is refused")
        checks.judge(session, version)
        checks.judge_tags(session, version)
        progress(f"{version.name}: what is no approval")
        approvals.judge(session, version)
    progress("versions")
    checks.judge_versions(session, list(served))
    progress("waiting")
    waiting = checks.judge_waits(session, list(served))
    progress("/metadata/instance")
    name = checks.judge_instance(session)
    newest = list(served.values())[-1]
    for event in newest.events:
        checks.judge_name(session, name, event, newest.response)
    if options.provoke is not None:
        progress("the life of an event")
        Lifecycle(session, list(served), waiting, name, options.provoke, options.speed).run()
    progress("many requests at once")
    checks.judge_rate(session)
