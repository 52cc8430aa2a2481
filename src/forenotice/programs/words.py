"""What others print or say, fit for a log and a sentence."""

LONGEST = 100


def plain(text: str) -> str:
    """Text from outside without what could end a variable, break a line or steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def beginning(text: str, most: int) -> str:
    """As many words as there is room for."""
    if len(text) <= most:
        return text
    cut = text[: most - 2]
    whole = cut.rpartition(" ")[0]
    return f"{whole if len(whole) > most // 2 else cut} …"


def end(text: str, most: int) -> str:
    """The last words: there a program says why it failed."""
    return beginning(text[::-1], most)[::-1]


def of_error(error: Exception) -> str:
    """What the system says when something does not work."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return plain(said)[:LONGEST].lower()
