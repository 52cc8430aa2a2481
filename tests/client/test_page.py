"""The examples of the library's page go on when an approval fails."""

import re
from pathlib import Path

import pytest
from tests.client.samples import EVENT, document
from tests.client.scripted import Asked, answer, scripted

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if ".approve(" in example], ids=["sync", "async"])
def test_an_approval_that_fails_ends_nothing(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    approvals: list[bytes] = []

    def script(asked: Asked, _: object) -> bytes:
        if asked.method == "POST":
            approvals.append(asked.body)
            return answer("503 Service Unavailable")
        return answer(body=document() if approvals else document(EVENT))

    with scripted(script) as server:
        monkeypatch.setenv("FORENOTICE_ENDPOINT", server.url)
        monkeypatch.setenv("FORENOTICE_NAME", "WestNO_0")
        exec(compile(example, str(PAGE), "exec"), {"__name__": "__main__"})
    assert len(approvals) == 1
    assert "answered 503" in capsys.readouterr().out
