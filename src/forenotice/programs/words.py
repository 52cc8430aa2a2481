"""What others print or say, fit for a log and a sentence."""

LONGEST = 100


def plain(text: str) -> str:
    """Text from outside without what could end a variable, break a line or steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def of_error(error: Exception) -> str:
    """What the system says when something does not work."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return plain(said)[:LONGEST].lower()
