"""/live tells of tokens to administrators alone."""

import re

import pytest
from tests.portal.running import Portal
from tests.portal.test_live import CHANGED, following, position, restart

from forenotice.core.journal import OF_TOKENS
from forenotice.core.roles import Role


@pytest.mark.parametrize("role", [role for role in Role if role not in (Role.ADMIN, Role.TENANT)])
def test_who_signs_in_is_told_to_administrators_alone(portal: Portal, role: Role) -> None:
    looks, administers = portal.visitor_as(role), portal.visitor()
    with following(portal, looks) as others, following(portal, administers) as own:
        portal.visitor()
        signed_in = position(portal)
        with portal.service.store.read() as reader:
            [(_, entry)] = reader.journal.page(after=signed_in - 1)
        assert entry.action.startswith(OF_TOKENS)
        # One loop tells both: when the administrator knows, the other has been passed over.
        own.until(CHANGED)
        restart(portal, "db")
        told = re.search(rb"id: (\d+)\ndata: changed", others.until(CHANGED + b"\n"))
        assert told is not None
        assert int(told[1]) > signed_in
