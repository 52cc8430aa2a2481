"""The conformance kit judges an edge as it judges the service, which is behind it here, with a real NATS in between."""

import json
from pathlib import Path

from tests.acceptance.running import serving, until
from tests.conformance.test_endpoint import SPEED, documented
from tests.edge.running import process
from tests.nats_servers import nats_servers

from forenotice.wire import versions


def test_an_edge_keeps_every_clause_in_every_version(tmp_path: Path) -> None:
    with (
        nats_servers(tmp_path) as servers,
        serving(tmp_path, "--demo", "--speed", SPEED, "--nats", servers[0].url) as centre,
        process(tmp_path, centre.get("/v1/vms/web-0")["host"], servers.urls, "--as", "web-0") as edge,
    ):
        until(lambda: edge.incarnation())
        _, *arguments = (word.replace("127.0.0.1:8254", edge.guests) for word in documented())
        done = centre.cli(*arguments, "--strict", "--json")
        report = json.loads(done.stdout)
        assert [finding for finding in report["findings"] if finding["verdict"] == "fail"] == []
        # This edge has no limit of requests.
        assert {each["clause"] for each in report["findings"] if each["verdict"] != "pass"} == {"error.rate"}
        assert {each["where"] for each in report["findings"]} == {"", *(version.name for version in versions.ALL)}
        assert (done.returncode, report["passed"]) == (0, True)
        assert centre.defects == []
