"""Errors: a class docstring is the default message, facts are attributes."""

from forenotice.core import errors


def test_the_docstring_is_the_default_message() -> None:
    assert errors.UnavailableError().message == "The store cannot be reached just now; try again."
    assert str(errors.UnavailableError()) == errors.UnavailableError().message


def test_a_message_with_facts() -> None:
    error = errors.ConflictError("host a exists already", host="a")
    assert (error.message, error.facts, error.code) == ("host a exists already", {"host": "a"}, "conflict")


def test_every_branch_has_a_code_and_words_of_its_own() -> None:
    # Shells may have more of their own.
    branches = [kind for kind in errors.ForenoticeError.__subclasses__() if kind.__module__ == errors.__name__]
    assert len({branch.code for branch in branches}) == len(branches)
    assert all(branch().message for branch in branches)
