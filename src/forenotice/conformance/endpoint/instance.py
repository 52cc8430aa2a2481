"""Judging what a VM is told of itself, which clients of Scheduled Events ask for their own name."""

import json
from collections.abc import Iterator
from dataclasses import replace

from forenotice.conformance.endpoint.asking import Asker, Heard
from forenotice.conformance.endpoint.events import Event
from forenotice.conformance.endpoint.gates import DATE, FAULTS, json_of
from forenotice.conformance.endpoint.questions import Question
from forenotice.conformance.endpoint.sheet import Sheet

VERSION = "2021-02-01"
OTHER_VERSIONS = ("2017-04-02", "2019-03-11")
NO_VERSIONS = ("2017-04-01", "2021-02", "x")
KEYS = (
    "name",
    "vmId",
    "location",
    "resourceGroupName",
    "subscriptionId",
    "vmSize",
    "osType",
    "platformUpdateDomain",
    "platformFaultDomain",
    "placementGroupId",
    "vmScaleSetName",
    "zone",
    "priority",
    "evictionPolicy",
    "tags",
    "tagsList",
    "resourceId",
)
QUESTION = Question(version="", path="/metadata/instance", query=f"api-version={VERSION}")
NAME = replace(QUESTION, path="/metadata/instance/compute/name", query=f"{QUESTION.query}&format=text")


class Instance:
    def __init__(self, asker: Asker, sheet: Sheet) -> None:
        self._asker = asker
        self._sheet = sheet
        self.name = ""
        """Of the VM that asks; empty: unknown."""

    def judge(self) -> None:
        self._judge_versions()
        heard = self._asker.ask(QUESTION)
        found = json_of(heard)
        compute, network = found.get("compute"), found.get("network")
        sound = heard.status == 200 and isinstance(compute, dict) and isinstance(network, dict)
        if not self._sheet.judge(
            "instance.document", None, sound, "200 with compute and network", heard
        ) or not isinstance(compute, dict):
            self._sheet.skip_all(None, "/metadata/instance is not served", "instance")
            return
        missing = ", ".join(key for key in KEYS if key not in compute)
        self._sheet.judge("instance.keys", None, not missing, "all that PROTOCOL.md names", f"none of {missing}", heard)
        other = next((value for value in _leaves(found) if not isinstance(value, str)), None)
        self._sheet.judge("instance.text", None, other is None, "text", json.dumps(other), heard)
        self._judge_leaf(compute.get("name"))
        for version in OTHER_VERSIONS:
            self._expect("instance.any-version", replace(QUESTION, query=f"api-version={version}"), 200)
        self._expect("instance.version", replace(QUESTION, query=""), 400)
        for version in NO_VERSIONS:
            self._expect("instance.no-version", replace(QUESTION, query=f"api-version={version}"), 400)
        self._expect("instance.header", FAULTS["header"](QUESTION), 400)
        self._expect("instance.proxy", FAULTS["proxy"](QUESTION), 400)

    def judge_name(self, event: Event, heard: Heard) -> None:
        """Whether an event that names this VM writes it as it calls itself; others say nothing."""
        resources = event.get("Resources")
        if not self.name or not isinstance(resources, list):
            return
        alike = [name for name in resources if str(name).lower() == self.name.lower()]
        if alike:
            self._sheet.judge("instance.name", None, alike == [self.name], self.name, alike[0], heard)
        else:
            self._sheet.skip("instance.name", None, "no event named the VM that asked")

    def _judge_leaf(self, name: object) -> None:
        heard = self._asker.ask(NAME)
        kind = heard.headers.get("content-type", "none")
        said = heard.body.decode(errors="replace")
        sound = heard.status == 200 and said == name and kind.startswith("text/plain")
        self._sheet.judge("instance.leaf", None, sound, f"{name} as text/plain", f"{heard} {kind} {said}", heard)
        if isinstance(name, str):
            self.name = name
        self._expect("instance.leaf-json", replace(NAME, query=QUESTION.query), 400)

    def _judge_versions(self) -> None:
        heard = self._asker.ask(replace(QUESTION, path="/metadata/versions", query=""))
        listed = json_of(heard).get("apiVersions")
        names = listed if isinstance(listed, list) else []
        dates = [name for name in names if isinstance(name, str) and DATE.fullmatch(name)]
        sound = heard.status == 200 and bool(names) and names == dates
        seen = f"{heard} with {json.dumps(listed)}"
        self._sheet.judge("instance.versions", None, sound, "200 with apiVersions, a list of dates", seen, heard)

    def _expect(self, clause: str, question: Question, status: int) -> None:
        heard = self._asker.ask(question)
        self._sheet.judge(clause, None, heard.status == status, str(status), heard)


def _leaves(root: object) -> Iterator[object]:
    open_nodes = [root]
    while open_nodes:
        match open_nodes.pop():
            case dict() as node:
                open_nodes.extend(node.values())
            case list() as node:
                open_nodes.extend(node)
            case leaf:
                yield leaf
