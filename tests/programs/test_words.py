import pytest

from forenotice.programs import words


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "/secret"), "no such file or directory"),
        (OSError("its reply has no end"), "its reply has no end"),
        (TimeoutError(), "timeouterror"),
        (OSError(5, "A\x1b[2J\n" + "x" * 1000), "a [2j " + "x" * 94),
    ],
)
def test_a_fault_is_told_in_a_few_plain_words(error: Exception, said: str) -> None:
    assert words.of_error(error) == said
