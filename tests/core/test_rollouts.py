"""A rollout that somebody asks for: what makes no sense is refused, with what would."""

from datetime import timedelta
from typing import Any

import pytest
from tests.core.builders import MINUTE, SECOND

from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.core.rollouts import KINDS, MOST_AT_ONCE, Options, Request, RolloutStatus, require_sound
from forenotice.core.windows import parse_all


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_can_be_asked_for(kind: Kind) -> None:
    options = Options(notice=15 * MINUTE, batch=MOST_AT_ONCE, pause=timedelta(days=30))
    selector = require_sound(Request(kind=kind, hosts="rack1-*,!rack1-07", options=options))
    assert ("rack1-01" in selector, "rack1-07" in selector) == (True, False)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Kind.RESTART, {}, "a rollout cannot be a restart: give update, migrate, reboot"),
        (Kind.HOST_UPDATE, {"notice": 15 * MINUTE - SECOND}, "the notice must be at least 15 minutes"),
        (Kind.HOST_UPDATE, {"batch": 0}, "batch must be from 1 to 10000 hosts"),
        (Kind.HOST_UPDATE, {"batch": MOST_AT_ONCE + 1}, "batch must be from 1 to 10000 hosts"),
        (Kind.HOST_UPDATE, {"max_failures": 0}, "max_failures must be from 1 to 100000"),
        (Kind.HOST_UPDATE, {"pause": -SECOND}, "the pause must be at most 30 days"),
        (Kind.HOST_UPDATE, {"pause": timedelta(days=31)}, "the pause must be at most 30 days"),
    ],
)
def test_what_is_refused(kind: Kind, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.RefusedError) as refused:
        require_sound(Request(kind=kind, hosts="*", options=Options(**options)))
    assert refused.value.message == said


def test_options_as_operators_write_them() -> None:
    windows = ["mon-fri 22:00-04:00 Europe/Berlin"]
    options = Options(notice=20 * MINUTE, batch=2, pause=90 * SECOND, gate="probe", windows=parse_all(windows))
    assert options.facts() == {
        "notice_minutes": 20,
        "batch": 2,
        "pause_minutes": 1.5,
        "gate": "probe",
        "max_failures": 1,
        "windows": windows,
    }
    assert Options().facts()["notice_minutes"] is None


def test_what_is_live() -> None:
    assert [status for status in RolloutStatus if not status.live] == [RolloutStatus.CANCELED, RolloutStatus.COMPLETED]
