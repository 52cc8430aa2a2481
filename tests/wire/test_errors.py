"""Error bodies, with the sentences that clients know."""

import json

from hypothesis import given
from hypothesis import strategies as st

from forenotice.wire import errors


def test_the_header_sentence_is_as_the_protocol_has_it() -> None:
    assert errors.body(errors.MISSING_HEADER) == b'{"error":"Bad request. Required metadata header not specified"}'


def test_the_version_body_names_the_newest_three() -> None:
    assert errors.invalid_version_body() == (
        b'{"error":"Bad request. api-version is invalid or was not specified in the request.",'
        b'"newest-versions":["2020-07-01","2019-08-01","2019-04-01"]}'
    )


@given(st.text())
def test_any_message_is_json(message: str) -> None:
    assert json.loads(errors.body(message)) == {"error": message}
