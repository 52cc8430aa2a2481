"""The text of a scenario, and complaints that say where in it."""

from dataclasses import dataclass, field

from forenotice.core import errors
from forenotice.emulator.scenarios import positions
from forenotice.emulator.scenarios.positions import Path, Place


class ScenarioError(errors.RefusedError):
    """The scenario cannot be played."""

    code = "scenario"


@dataclass(frozen=True, slots=True)
class Text:
    source: str
    """The name of the file."""
    content: str = field(repr=False)

    def place(self, path: Path) -> Place:
        # Only for those who erred: nobody else needs it.
        return positions.nearest(positions.places(self.content), path)

    def complaint(self, path: Path, sentence: str) -> ScenarioError:
        return self.complaint_at(self.place(path), sentence)

    def complaint_at(self, place: Place, sentence: str) -> ScenarioError:
        return ScenarioError(
            f"{self.source}:{place.line}:{place.column}: {sentence}",
            source=self.source,
            line=place.line,
            column=place.column,
        )


def nearest(word: str, known: list[str], noun: str) -> str:
    """`there is no VM 'web-O'; did you mean 'web-0'?`"""
    # Only for those who erred: it is not needed otherwise.
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else "there are none"
    return f"there is no {noun} {word[:80]!r}; {remedy}"
