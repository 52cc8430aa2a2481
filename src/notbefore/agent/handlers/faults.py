"""What the system says when something does not work, as part of a sentence."""

from notbefore.agent.handlers import facts

LONGEST = 100


def words(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return facts.plain(said)[:LONGEST].lower()
