"""StartRequests: what is taken, and the sentence for what is not."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forenotice.core import errors
from forenotice.wire import approvals

ONE = "F020BA2E-3BC0-4C40-A10B-86575A9EABD5"
TWO = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["StartRequests", "EventId", "DocumentIncarnation", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def body(*ids: str, **beside: object) -> bytes:
    return json.dumps({**beside, "StartRequests": [{"EventId": each} for each in ids]}).encode()


@pytest.mark.parametrize(
    ("sent", "ids"),
    [
        (body(ONE), (ONE,)),
        (body(ONE.lower()), (ONE,)),
        (body(ONE, TWO), (ONE, TWO)),
        (body(TWO, ONE, TWO.lower()), (TWO, ONE)),
        (body(ONE, DocumentIncarnation=5), (ONE,)),
        (body(ONE, DocumentIncarnation="5"), (ONE,)),
        (body(ONE, DocumentIncarnation={"odd": [None]}), (ONE,)),
        (b'{"DocumentIncarnation":1e999,' + body(ONE)[1:], (ONE,)),
        (b'{"StartRequests":[{"EventId":"%b","EventType":1e999}],"x":null}' % ONE.encode(), (ONE,)),
        (b"\xef\xbb\xbf" + body(ONE), (ONE,)),
        (b" \r\n" + body(ONE) + b"\n", (ONE,)),
        (body(ONE) + b" " * (approvals.MAX_BODY - len(body(ONE))), (ONE,)),
    ],
)
def test_approvals_are_read(sent: bytes, ids: tuple[str, ...]) -> None:
    assert approvals.parse(sent) == ids


QUOTED = ONE.encode()
MALFORMED: dict[str, list[bytes]] = {
    "the body is empty": [b"", b"\xef\xbb\xbf \n"],
    "the body is not JSON": [b"EventId=" + QUOTED, body(ONE)[:-1], body(ONE) + b"x"],
    "the body is not JSON in UTF-8": [b'{"StartRequests":[{"EventId":"\xff"}]}', body(ONE).decode().encode("utf-16")],
    "the body is nested too deeply": [b'{"x":' + b"[" * 60_000],
    "the body has not the form": [
        *(b"null", b"[]", b'"text"', b'{"StartRequests":{}}', b'{"StartRequests":"text"}'),
        *(b'{"StartRequests":["%b"]}' % QUOTED, b'{"StartRequests":[{"EventId":7}]}'),
        b'{"StartRequests":[{"EventId":["%b"]}]}' % QUOTED,
    ],
    "the body has no StartRequests": [b"{}", b'{"StartRequests":null}', b'{"startrequests":[]}'],
    "StartRequests is empty": [b'{"StartRequests":[]}'],
    r"StartRequests\[0\] has no EventId": [b'{"StartRequests":[{"EventId":null}]}'],
    r"StartRequests\[1\] has no EventId": [b'{"StartRequests":[{"EventId":"%b"},{}]}' % QUOTED],
    "is not a GUID": [
        *(body(""), body("*"), body("{" + ONE + "}"), body(ONE.replace("-", "")), body(ONE + "\n")),
        *(body(ONE[:-1] + "G"), body(ONE[:-1] + "\u0661")),
    ],
    r"'nonsense' of StartRequests\[1\] is not a GUID": [body(ONE, "nonsense")],
}


@pytest.mark.parametrize(("sentence", "sent"), [(said, each) for said, bodies in MALFORMED.items() for each in bodies])
def test_what_is_malformed_is_refused_with_a_sentence_and_an_example(sentence: str, sent: bytes) -> None:
    with pytest.raises(errors.RefusedError, match=sentence) as refused:
        approvals.parse(sent)
    assert '{"StartRequests":[{"EventId":"GUID"}]}' in refused.value.message


def test_a_body_over_the_limit_is_refused_whatever_it_says() -> None:
    with pytest.raises(errors.RefusedError, match="65537 bytes, more than 65536"):
        approvals.parse(body(ONE).ljust(approvals.MAX_BODY + 1))


def test_a_long_id_is_not_sent_back_whole() -> None:
    with pytest.raises(errors.RefusedError) as refused:
        approvals.parse(body("x" * 60_000))
    assert len(refused.value.message) < 300


@given(st.lists(st.uuids(), min_size=1, max_size=20))
def test_ids_come_back_once_each_in_order(ids: list[object]) -> None:
    wanted = tuple(dict.fromkeys(str(each).upper() for each in ids))
    assert approvals.parse(body(*(str(each) for each in ids))) == wanted


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 60_000)
def test_nothing_but_a_refusal_comes_out_of_garbage(sent: bytes) -> None:
    try:
        ids = approvals.parse(sent)
    except errors.RefusedError:
        return
    assert ids
