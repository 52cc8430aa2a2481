"""/metadata/instance and /metadata/versions."""

import json
import re
from dataclasses import replace

import pytest
from tests.metadata.running import DB, DB_ADDRESS, DB_VM, Running, request

from forenotice import publication
from forenotice.core.fleet import Facts
from forenotice.publication import Publication
from forenotice.wire import versions

INSTANCE = "/metadata/instance?api-version=2021-02-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


def test_a_vm_is_told_of_itself(shared: Running) -> None:
    reply = shared.ask(INSTANCE)
    assert reply["Content-Type"] == "application/json; charset=utf-8"
    found = json.loads(reply.body)
    assert list(found) == ["compute", "network"]
    assert found["compute"]["name"] == "web-0"
    assert found["compute"]["platformUpdateDomain"] == "0"
    assert "127.1.0.21" in reply.text
    assert json.loads(shared.ask(INSTANCE, source=DB_ADDRESS).body)["compute"]["name"] == "db"


def test_a_leaf_is_text(shared: Running) -> None:
    reply = shared.ask(NAME)
    assert (reply.status, reply.text, reply["Content-Type"]) == (200, "web-0", "text/plain; charset=utf-8")
    assert shared.ask(NAME.replace("compute/name", "Compute/vmId").replace("text", "TEXT")).status == 200


def test_a_part_is_json(shared: Running) -> None:
    reply = shared.ask("/metadata/instance/compute?api-version=2017-04-02&format=json")
    assert json.loads(reply.body)["name"] == "web-0"


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/metadata/instance/compute/name?api-version=2021-02-01", 400),
        ("/metadata/instance/compute?api-version=2021-02-01&format=text", 400),
        ("/metadata/instance?api-version=2021-02-01&format=xml", 400),
        ("/metadata/instance", 400),
        ("/metadata/instance?api-version=2017-04-01", 400),
        ("/metadata/instance?api-version=latest", 400),
        ("/metadata/instance?api-version=2021-02-01&api-version=2021-02-01", 400),
        ("/metadata/instance/compute/nothing?api-version=2021-02-01&format=text", 404),
        ("/metadata/instance/elsewhere?api-version=2021-02-01", 404),
    ],
)
def test_what_is_refused(shared: Running, target: str, status: int) -> None:
    reply = shared.ask(target)
    assert reply.status == status
    assert re.match(r"(Bad request|Not found)\. ([A-Z]|api-version|format)", json.loads(reply.body)["error"])


@pytest.mark.parametrize("target", [INSTANCE, NAME, "/metadata/versions"])
def test_the_rules_of_the_endpoint_hold_here_too(shared: Running, target: str) -> None:
    assert shared.ask(target, headers=()).status == 400
    assert shared.ask(target, headers=("Metadata: true", "X-Forwarded-For: 1.2.3.4")).status == 400
    assert shared.ask(target, source="127.9.9.9").status == 404


def test_the_versions_are_listed(shared: Running) -> None:
    reply = shared.ask("/metadata/versions")
    listed = json.loads(reply.body)["apiVersions"]
    assert listed == [version.name for version in versions.ALL[1:]]
    # Any of them can be asked for, here and there.
    for name in listed:
        for place in ("instance", "scheduledevents"):
            assert shared.ask(f"/metadata/{place}?api-version={name}").status == 200


def test_changed_facts_are_shown(server: Running) -> None:
    facts = Facts(location="norwayeast", tags={"team": "data"})
    server.publisher.scopes([publication.of(DB, vms=(replace(DB_VM, facts=facts, spot=True),))])
    server.settle()
    compute = json.loads(server.ask(INSTANCE, source=DB_ADDRESS).body)["compute"]
    assert (compute["location"], compute["tags"], compute["priority"]) == ("norwayeast", "team:data", "Spot")


def test_a_vm_that_is_removed_while_it_sends_a_body_is_not_described(server: Running) -> None:
    with server.connect(DB_ADDRESS) as client:
        client.send(request(INSTANCE, headers=("Metadata: true", "Expect: 100-continue", "Content-Length: 2")))
        assert client.reply().status == 100
        server.publisher.scopes([Publication(key=DB.key)])
        server.settle()
        client.send(b"{}")
        assert client.reply().status == 404
