"""The name of a host as one token of a subject."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forenotice.cluster.subjects import Subjects, host_of, token

TOKEN = re.compile(r"[A-Za-z0-9_=-]*")
"""Nothing that separates tokens, stands for others, or that a server or a shell takes for something else."""
NAMES = st.one_of(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), st.text())


@settings(deadline=None)
@given(NAMES)
@example("rack1.host-a")
@example("a=2Eb")
@example("a b*>")
@example("høst")
def test_a_name_is_one_token_and_can_be_read_from_each_of_its_subjects(name: str) -> None:
    assert TOKEN.fullmatch(token(name))
    subjects = Subjects.of(name)
    for subject in (subjects.docs, subjects.live, subjects.approve, subjects.heard, subjects.beat, subjects.ask):
        assert host_of(subject) == name


@settings(deadline=None)
@given(NAMES, NAMES)
@example("a.b", "a=2Eb")
@example("a", "A")
@example("é", "Ã©")
def test_different_names_have_different_tokens(one: str, other: str) -> None:
    assert (token(one) == token(other)) == (one == other)


def test_a_token_that_no_name_has_is_read_without_failing() -> None:
    assert host_of("nb.beat.=FF") == "\ufffd"
