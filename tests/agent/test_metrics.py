"""What Prometheus reads, by its own parser."""

import re
import threading
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forenotice import __version__
from forenotice.agent.listener import Request
from forenotice.agent.metrics import FAMILIES, PREFIX, Approval, Exchange, Metrics, Poll
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import State

NOTHING: Mapping[str, str] = {}


class Reader:
    """A Metrics at a time that the test sets, read as Prometheus reads it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics(lambda: self.now)

    def value(self, name: str, **labels: str) -> float | None:
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.metrics.render())
            for sample in family.samples
        }
        return found.get((PREFIX + name, tuple(sorted(labels.items()))))


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_every_family_is_described_and_has_its_type(reader: Reader) -> None:
    reader.metrics.froze(1.0, 2.0)
    reader.metrics.stepped("nginx", Phase.PREPARE, ok=True, seconds=1.0)
    read = {family.name: family for family in text_string_to_metric_families(reader.metrics.render())}
    assert len(read) == len(FAMILIES)
    for family in FAMILIES:
        # The parser names a counter without its ending.
        found = read[PREFIX + family.name.removesuffix("_total")]
        assert (found.type, found.documentation) == (family.kind, family.help)
        assert found.samples, f"{family.name} has no value"
        assert all(set(sample.labels) == set(family.labels) for sample in found.samples)
        assert (family.kind == "counter") == family.name.endswith("_total")


def test_what_can_be_counted_is_zero_at_the_start(reader: Reader) -> None:
    assert reader.value("polls_total", result="error") == 0
    assert reader.value("events_total", type="Preempt") == 0
    assert reader.value("sagas", state="preparing") == 0
    assert reader.value("sagas", state="done") is None
    assert reader.value("approvals_total", result="refused") == 0
    assert reader.value("resumed_total") == reader.value("journal_errors_total") == 0
    assert reader.value("freeze_measured_seconds") is None
    assert reader.value("build_info", version=__version__) == 1


def test_polls_and_the_time_since_a_good_one(reader: Reader) -> None:
    reader.now += 5
    assert reader.value("seconds_since_good_poll") == 5
    for result in (Poll.OK, Poll.UNCHANGED, Poll.UNCHANGED):
        reader.metrics.polled(result)
    reader.now += 7
    reader.metrics.polled(Poll.ERROR)
    assert [reader.value("polls_total", result=result) for result in Poll] == [1, 2, 1]
    assert reader.value("seconds_since_good_poll") == 7


def test_events_by_type_and_no_label_that_an_endpoint_made_up(reader: Reader) -> None:
    for kind in ("Freeze", "Freeze", "Meteor", 'x"\n'):
        reader.metrics.saw(kind)
    assert reader.value("events_total", type="Freeze") == 2
    assert reader.value("events_total", type="other") == 2
    assert "Meteor" not in reader.metrics.render()


def test_sagas_by_state_as_they_are_now(reader: Reader) -> None:
    reader.metrics.handles({State.PREPARING: 2, State.STARTED: 1, State.DONE: 9})
    reader.metrics.handles({State.PREPARED: 1})
    assert [reader.value("sagas", state=state) for state in ("preparing", "prepared", "started")] == [0, 1, 0]


def test_steps_and_how_long_they_took(reader: Reader) -> None:
    for ok, seconds in ((True, 1.5), (False, 2.0), (True, 0.25)):
        reader.metrics.stepped("nginx", Phase.PREPARE, ok=ok, seconds=seconds)
    reader.metrics.stepped("nginx", Phase.RECOVER, ok=True, seconds=3.0)
    assert reader.value("steps_total", handler="nginx", phase="prepare", result="ok") == 2
    assert reader.value("steps_total", handler="nginx", phase="prepare", result="failed") == 1
    assert reader.value("handler_seconds_sum", handler="nginx", phase="prepare") == 3.75
    assert reader.value("handler_seconds_count", handler="nginx", phase="prepare") == 3
    assert reader.value("handler_seconds_count", handler="nginx", phase="recover") == 1


def test_approvals_readiness_restarts_and_the_journal(reader: Reader) -> None:
    reader.metrics.approved(Approval.ACCEPTED)
    reader.metrics.approved(Approval.REFUSED)
    reader.metrics.became(ready=True)
    reader.metrics.resumed()
    reader.metrics.journal_failed()
    reader.metrics.exchanged(Exchange.RECEIVED)
    assert reader.value("approvals_total", result="accepted") == 1
    assert reader.value("approvals_total", result="refused") == 1
    assert reader.value("ready") == 1
    assert reader.value("resumed_total") == reader.value("journal_errors_total") == 1
    assert reader.value("peer_messages_total", result="received") == 1
    reader.metrics.became(ready=False)
    assert reader.value("ready") == 0


def test_the_last_freeze_as_measured_and_as_announced(reader: Reader) -> None:
    reader.metrics.froze(3.25, 9.0)
    assert reader.value("freeze_measured_seconds") == 3.25
    assert reader.value("freeze_expected_seconds") == 9
    reader.metrics.froze(0.0, None)
    assert reader.value("freeze_measured_seconds") == 0
    assert reader.value("freeze_expected_seconds") is None


def test_a_handlers_name_is_read_back_whatever_is_in_it(reader: Reader) -> None:
    name = 'back\\slash "quoted"\nnew line \\n {}=, ü'
    reader.metrics.stepped(name, Phase.UNDO, ok=True, seconds=0.1)
    assert reader.value("steps_total", handler=name, phase="undo", result="ok") == 1


def test_no_id_is_in_a_label(reader: Reader) -> None:
    """Ids reach nothing that becomes a label: handlers, phases, states, types and results are closed or configured."""
    reader.metrics.saw("C7061BAC-AFDC-4513-B24B-AA5F13A16123")
    assert not re.search(r"[0-9A-F]{8}-[0-9A-F]{4}-", reader.metrics.render(), re.IGNORECASE)


def test_threads_do_not_lose_each_others_counts(reader: Reader) -> None:
    def work() -> None:
        for _ in range(2000):
            reader.metrics.polled(Poll.OK)
            reader.metrics.stepped("a", Phase.PREPARE, ok=True, seconds=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        reader.metrics.render()
    assert reader.value("polls_total", result="ok") == 8000
    assert reader.value("handler_seconds_sum", handler="a", phase="prepare") == 8000


def test_the_page_has_the_formats_own_type(reader: Reader) -> None:
    reply = reader.metrics.routes()["GET", "/metrics"](Request(method="GET", path="/metrics"))
    assert (reply.status, reply.kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert reply.body.endswith(b"\n")
