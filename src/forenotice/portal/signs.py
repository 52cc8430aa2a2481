"""How the state of a VM is shown: by a sign, and in words."""

from collections.abc import Mapping

from forenotice.core.operations import VmState

SIGNS: Mapping[str, str] = {VmState.FINE: "✓", VmState.SCHEDULED: "◷", VmState.STARTED: "►", VmState.NOT_LISTENING: "⊘"}
"""So that colours are not alone to say it."""
MEANINGS: Mapping[str, str] = {
    VmState.FINE: "nothing is planned",
    VmState.SCHEDULED: "something will be done to it",
    VmState.STARTED: "something is being done to it",
    VmState.NOT_LISTENING: "nothing is planned, and nobody there asks for events",
}
