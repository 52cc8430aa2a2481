"""Where findings are collected: for each clause and version one verdict, however often it was looked at."""

from collections.abc import Sequence

from forenotice.conformance.endpoint import clauses
from forenotice.conformance.endpoint.clauses import Basis, Clause, Needs
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.wire.versions import Version

LONGEST = 160
"""Of what was seen, in characters."""

UNSEEN = {
    Needs.NOTHING: "it could not be judged",
    Needs.EVENT: "no event was listed",
    Needs.PROVOKED: "needs an event: give --provoke",
}


class Sheet:
    def __init__(self, versions: Sequence[Version], *, strict: bool) -> None:
        self._versions = versions
        self._strict = strict
        self._findings: dict[tuple[str, str], Finding] = {}
        self._skipped: dict[tuple[str, str], Finding] = {}
        self.unseen = dict(UNSEEN)
        """Why a clause that nothing was found about is not applicable."""

    def judge(self, clause_id: str, version: Version | None, ok: bool, expected: str, seen: object) -> bool:
        """The first failure stays. A clause that does not concern the version is left alone."""
        clause = clauses.BY_ID[clause_id]
        where = self._where(clause, version)
        if where is None:
            return ok
        known = self._findings.get((clause_id, where))
        if known is None or (known.verdict is Verdict.PASSED and not ok):
            self._findings[clause_id, where] = self._finding(clause, where, ok, expected, str(seen)[:LONGEST])
        return ok

    def skip(self, clause_id: str, version: Version | None, why: str) -> None:
        clause = clauses.BY_ID[clause_id]
        where = self._where(clause, version)
        if where is not None:
            self._skipped.setdefault((clause_id, where), _skipped(clause, where, why))

    def skip_version(self, version: Version, why: str) -> None:
        for clause in clauses.ALL:
            if clause.versions(version):
                self.skip(clause.id, version, why)

    def skip_section(self, section: str, why: str) -> None:
        for clause in clauses.ALL:
            if clause.id.startswith(f"{section}."):
                for where in (*self._versions, None):
                    self.skip(clause.id, where, why)

    def report(self, subject: str) -> Report:
        return Report(
            subject=subject,
            findings=[
                self._findings.get((clause.id, where))
                or self._skipped.get((clause.id, where))
                or _skipped(clause, where, self.unseen[clause.needs])
                for clause in clauses.ALL
                for where in self._wheres(clause)
            ],
        )

    def _finding(self, clause: Clause, where: str, ok: bool, expected: str, seen: str) -> Finding:
        if ok:
            return Finding(clause=clause.id, says=clause.says, where=where, verdict=Verdict.PASSED)
        if clause.basis is Basis.OURS and not self._strict:
            return _skipped(clause, where, f"only forenotice promises it; expected {expected}, saw {seen}")
        return Finding(
            clause=clause.id, says=clause.says, where=where, verdict=Verdict.FAILED, expected=expected, seen=seen
        )

    def _wheres(self, clause: Clause) -> Sequence[str]:
        if clause.versions is clauses.once:
            return ("",)
        return [version.name for version in self._versions if clause.versions(version)]

    def _where(self, clause: Clause, version: Version | None) -> str | None:
        where = version.name if version and clause.versions is not clauses.once else ""
        return where if where in self._wheres(clause) else None


def _skipped(clause: Clause, where: str, why: str) -> Finding:
    return Finding(clause=clause.id, says=clause.says, where=where, verdict=Verdict.NOT_APPLICABLE, why=why)
