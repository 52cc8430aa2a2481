import pytest

from forenotice.programs import words


@pytest.mark.parametrize(
    ("text", "beginning", "end"),
    [
        ("no such domain on host-7", "no such …", "… on host-7"),
        ("no such one", "no such one", "no such one"),
        ("!" * 20, "!" * 10 + " …", "… " + "!" * 10),
    ],
)
def test_what_is_too_long_is_cut_between_words(text: str, beginning: str, end: str) -> None:
    assert (words.beginning(text, 12), words.end(text, 12)) == (beginning, end)


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
