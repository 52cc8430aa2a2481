"""Where findings are collected: for each clause and version one verdict, however often it was looked at."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from forenotice.conformance.endpoint import clauses
from forenotice.conformance.endpoint.clauses import Basis, Clause, Needs
from forenotice.conformance.endpoint.http import Response
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.wire.versions import Version

LONGEST = 160
"""Of what was seen, in characters."""

UNSEEN = {
    Needs.NOTHING: "it could not be judged",
    Needs.EVENT: "no event was listed",
    Needs.PROVOKED: "needs an event: give --provoke",
}


class Findings:
    def __init__(self, versions: Sequence[Version], *, strict: bool) -> None:
        self._versions = versions
        self._strict = strict
        self._findings: dict[tuple[str, str], Finding] = {}
        self._skipped: dict[tuple[str, str], Finding] = {}
        self._moot: set[str] = set()
        self.unseen = dict(UNSEEN)
        """Why a clause that nothing was found about is not applicable."""

    def judge(
        self,
        clause_id: str,
        version: Version | None,
        ok: bool,
        expected: str = "",
        seen: object = "",
        response: Response | None = None,
    ) -> bool:
        """The first failure stays. A clause that does not concern the version is left alone."""
        clause = clauses.BY_ID[clause_id]
        where = self._where(clause, version)
        if where is None or (ok and clause_id in self._moot):
            return ok
        known = self._findings.get((clause_id, where))
        if known is None or (known.verdict is Verdict.PASSED and not ok):
            about = response or (seen if isinstance(seen, Response) else None)
            request = str(about.request) if about else ""
            self._findings[clause_id, where] = self._finding(clause, where, ok, expected, str(seen)[:LONGEST], request)
        return ok

    def judged(self, clause_id: str, version: Version | None = None) -> bool | None:
        """Whether it holds, so far; None: nothing was found about it."""
        found = self._findings.get((clause_id, self._where(clauses.BY_ID[clause_id], version) or ""))
        return None if found is None else found.verdict is Verdict.PASSED

    def skip(self, clause_id: str, version: Version | None, why: str) -> None:
        """It stays so unless it is judged after all."""
        clause = clauses.BY_ID[clause_id]
        where = self._where(clause, version)
        if where is not None:
            self._skipped.setdefault((clause_id, where), _skipped(clause, where, why))

    def make_moot(self, clause_ids: Iterable[str], why: str) -> None:
        """From now on it proves nothing that they seem to hold."""
        for clause_id in clause_ids:
            self._moot.add(clause_id)
            for version in (*self._versions, None):
                self.skip(clause_id, version, why)

    def skip_all(self, version: Version | None, why: str, *sections: str) -> None:
        """That concern the version, or have nothing to do with versions if it is None."""
        for clause in clauses.ALL:
            concerned = clause.versions(version) if version else clause.versions is clauses.once
            if concerned and (not sections or clause.section in sections):
                self.skip(clause.id, version, why)

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

    def _finding(self, clause: Clause, where: str, ok: bool, expected: str, seen: str, request: str) -> Finding:
        found = _skipped(clause, where, "")
        if ok:
            return replace(found, verdict=Verdict.PASSED)
        if found.ours and not self._strict:
            return replace(found, why=f"judged only with --strict; expected {expected}, saw {seen}", request=request)
        return replace(found, verdict=Verdict.FAILED, expected=expected, seen=seen, request=request)

    def _wheres(self, clause: Clause) -> Sequence[str]:
        if clause.versions is clauses.once:
            return ("",)
        return [version.name for version in self._versions if clause.versions(version)]

    def _where(self, clause: Clause, version: Version | None) -> str | None:
        where = version.name if version and clause.versions is not clauses.once else ""
        return where if where in self._wheres(clause) else None


def _skipped(clause: Clause, where: str, why: str) -> Finding:
    return Finding(
        clause=clause.id,
        says=clause.says,
        ours=clause.basis is Basis.OURS,
        where=where,
        verdict=Verdict.NOT_APPLICABLE,
        why=why,
    )
