"""A VM's document: exactly the bytes that it is answered with in an api-version."""

from forenotice.core import documents, errors
from forenotice.core.draft import Draft
from forenotice.core.selectors import Selector
from forenotice.service import visibility
from forenotice.service.context import Service, new_id
from forenotice.wire import document as wire_document
from forenotice.wire import versions

VERSIONS = tuple(version.name for version in reversed(versions.ALL))
"""Newest first."""


def document(service: Service, vm_name: str, version: str = VERSIONS[0], seen: Selector | None = None) -> bytes:
    wanted = service.versions.get(version)
    if wanted is None:
        raise errors.RefusedError(f"there is no api-version {version[:80]!r}: choose one of {', '.join(VERSIONS)}")
    with service.store.read() as reader:
        world = visibility.limited(reader.load(vms=[vm_name]), seen)
    draft = Draft(world, now=service.clock.now(), timing=service.timing, new_id=new_id)
    scope = draft.scope(draft.vm(vm_name).scope)
    return wire_document.render(documents.document(scope, draft.live_events_in(scope.key)), wanted)
