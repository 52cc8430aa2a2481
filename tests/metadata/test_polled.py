"""When each VM last polled, as far as this process knows."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.metadata.running import APPROVAL, PATH, WEB, WEB_VMS, Running, auto, request, running

from forenotice import publication


def is_recent(server: Running, vm: str) -> bool:
    polled = server.published.polled(vm)
    return polled is not None and abs(datetime.now(UTC) - polled) < timedelta(seconds=10)


def forget(server: Running, vm: str) -> None:
    server.call(setattr, server.published.by_name[vm], "polled", 0.0)


def test_a_poll_is_that_of_its_vm_alone(server: Running) -> None:
    assert server.published.polled("web-0") is None
    assert server.ask().status == 200
    assert is_recent(server, "web-0")
    assert server.published.polled("web-1") is None
    assert server.published.polled("nobody") is None


def test_every_poll_counts_also_the_same_again_and_the_unchanged(server: Running) -> None:
    with server.connect() as client:
        client.send(request())
        etag = client.reply()["ETag"]
        for headers in (["Metadata: true"], ["Metadata: true"], ["Metadata: true", f"If-None-Match: {etag}"]):
            forget(server, "web-0")
            client.send(request(headers=headers))
            client.reply()
            assert is_recent(server, "web-0"), headers


def test_a_first_poll_counts() -> None:
    with running(fleet=(publication.of(auto(WEB), vms=WEB_VMS),)) as server:
        assert server.ask().status == 200
        assert is_recent(server, "web-0")


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", PATH, APPROVAL),
        ("GET", "/metadata/instance?api-version=2021-02-01", None),
        ("GET", "/metadata/versions", None),
    ],
)
def test_other_requests_are_not_polls(server: Running, method: str, target: str, body: bytes | None) -> None:
    assert server.ask(target, method=method, body=body).status == 200
    assert server.published.polled("web-0") is None


def test_a_vm_made_anew_has_not_polled(server: Running) -> None:
    assert server.ask().status == 200
    server.publisher.scopes([publication.of(WEB, vms=WEB_VMS[1:])])
    server.publisher.scopes([publication.of(WEB, vms=WEB_VMS)])
    server.settle()
    assert server.published.polled("web-0") is None
