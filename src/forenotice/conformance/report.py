"""What a judge found: for people a line for each clause, for machines JSON and JUnit."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from xml.etree import ElementTree

NOTHING = re.compile(r"(?!)")


class Verdict(StrEnum):
    PASSED = "pass"
    FAILED = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    clause: str
    """Its id, whose first part names the section."""
    says: str
    ours: bool = False
    """Only forenotice promises it."""
    where: str = ""
    """In which api-version, or in whatever else the clause is judged more than once."""
    verdict: Verdict
    expected: str = ""
    seen: str = ""
    why: str = ""
    """Why it is not applicable."""
    request: str = ""
    """What was sent, where the answer was not as expected."""

    @property
    def sentence(self) -> str:
        return f"{self.says} (ours)" if self.ours else self.says

    @property
    def reason(self) -> str:
        match self.verdict:
            case Verdict.PASSED:
                return ""
            case Verdict.FAILED:
                return f"expected {self.expected}, saw {self.seen}"
            case Verdict.NOT_APPLICABLE:
                return self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    verdict: Verdict
    text: str
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    subject: str
    """Who was judged."""
    findings: Sequence[Finding]

    @property
    def passed(self) -> bool:
        return all(finding.verdict is not Verdict.FAILED for finding in self.findings)

    def lines(self, most: int | None = None, changing: re.Pattern[str] = NOTHING) -> Iterator[Line]:
        """One for each clause, or one for each verdict and reason where it has several.

        `changing` is what may differ where the reason is the same; at most so many places are named.
        """
        width = max((len(finding.clause) for finding in self.findings), default=0)
        for _, of_clause in groupby(self._lines(changing), key=lambda line: line[0].clause):
            several = list(of_clause)
            for line in several:
                first = line[0]
                names = ", ".join(finding.where for finding in line[:most])
                more = f" and {len(line) - most} more" if most is not None and len(line) > most else ""
                where = f" [{names}{more}]" if len(several) > 1 else ""
                told = f": {first.reason}" if first.reason else ""
                text = f"{first.clause:<{width}}  {first.sentence}{where}{told}"
                yield Line(verdict=first.verdict, text=text, request=first.request)

    def summary(self) -> str:
        """Of lines rather than findings: it is what people have just read."""
        counted = Counter(line[0].verdict for line in self._lines())
        return ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict)

    def data(self) -> dict[str, object]:
        counted = Counter(finding.verdict for finding in self.findings)
        return {
            "subject": self.subject,
            "passed": self.passed,
            "summary": {verdict: counted[verdict] for verdict in Verdict},
            "findings": [asdict(finding) for finding in self.findings],
        }

    def junit(self) -> bytes:
        """A test case for each finding, in the form that continuous integration reads."""
        counted = Counter(finding.verdict for finding in self.findings)
        counts = {
            "tests": str(len(self.findings)),
            "failures": str(counted[Verdict.FAILED]),
            "errors": "0",
            "skipped": str(counted[Verdict.NOT_APPLICABLE]),
        }
        root = ElementTree.Element("testsuites", counts)
        suite = ElementTree.SubElement(root, "testsuite", {"name": _legible(f"forenotice conformance {self.subject}")})
        suite.attrib.update(counts)
        for finding in self.findings:
            name = f"{finding.clause} [{finding.where}]" if finding.where else finding.clause
            section = finding.clause.partition(".")[0]
            case = ElementTree.SubElement(
                suite, "testcase", {"classname": f"conformance.{section}", "name": _legible(name), "time": "0"}
            )
            match finding.verdict:
                case Verdict.FAILED:
                    told = {"message": _legible(finding.reason), "type": "conformance"}
                    asked = f"; request: {finding.request}" if finding.request else ""
                    ElementTree.SubElement(case, "failure", told).text = _legible(finding.sentence + asked)
                case Verdict.NOT_APPLICABLE:
                    ElementTree.SubElement(case, "skipped", {"message": _legible(finding.reason)})
        ElementTree.indent(root)
        written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        return written + b"\n"

    def _lines(self, changing: re.Pattern[str] = NOTHING) -> Iterator[Sequence[Finding]]:
        for _, of_clause in groupby(self.findings, key=lambda finding: finding.clause):
            alike: dict[tuple[Verdict, str], list[Finding]] = {}
            for finding in of_clause:
                alike.setdefault((finding.verdict, changing.sub("", finding.reason)), []).append(finding)
            yield from alike.values()


def _legible(text: str) -> str:
    """XML cannot hold control characters, and what was seen may hold any."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
