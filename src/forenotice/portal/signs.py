"""How the state of a VM is shown: by a sign, and in words."""

from collections.abc import Mapping

from forenotice.core.states import State

SIGNS: Mapping[str, str] = {State.FINE: "✓", State.SCHEDULED: "◷", State.STARTED: "►", State.NOT_LISTENING: "⊘"}
"""So that colours are not alone to say it."""
MEANINGS: Mapping[str, str] = {
    State.FINE: "nothing is planned",
    State.SCHEDULED: "something will be done to it",
    State.STARTED: "something is being done to it",
    State.NOT_LISTENING: "nothing is planned, and nobody there asks for events",
}
