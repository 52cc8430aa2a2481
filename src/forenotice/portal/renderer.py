"""Pages from templates: the environment, and how times, spans and sentences are written."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import resources
from types import CodeType
from typing import Any, Final

import jinja2
import msgspec
from jinja2.bccache import Bucket
from markupsafe import Markup, escape
from starlette.responses import Response

from forenotice import __version__
from forenotice.portal.timeline import MOST_MARKS, Timeline
from forenotice.views import wording

PLACE = "/static"
TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FOR_EVER = "public, max-age=31536000, immutable"


class Assets:
    """In memory: a few files of a few KiB."""

    def __init__(self) -> None:
        found = resources.files("forenotice.portal").joinpath("static").iterdir()
        self._files = {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in TYPES}
        digest = hashlib.sha256()
        for name in sorted(self._files):
            digest.update(name.encode() + b"\0" + self._files[name])
        # One for all, so that a module finds the others beside it.
        self.version = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        if name not in self._files:
            raise LookupError(name)
        return f"{PLACE}/{self.version}/{name}"

    def answer(self, version: str, name: str) -> Response | None:
        """None: there is no such file. A page of another version of ours gets what there is, and keeps it not."""
        content = self._files.get(name)
        if content is None:
            return None
        kept = FOR_EVER if version == self.version else "no-store"
        return Response(content, headers={"Content-Type": TYPES[name.rpartition(".")[2]], "Cache-Control": kept})


MOMENT = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} UTC")
NAMED = re.compile(
    r"\b(event|operation|rollout) ([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b", re.I
)
HALF_DAY = timedelta(hours=12)
SHORT = 8
"""Digits of an id that people are shown; the whole of it is in the link."""


class _Compiled(jinja2.BytecodeCache):
    """Templates take longer to compile than to render: those of one process, such as of many emulators, do it once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._found.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._found[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


class Renderer:
    """Light: it knows nothing of the service, so that every shell can have pages."""

    def __init__(self, assets: Assets, *packages: str, **given: Any) -> None:
        """`packages` have templates of their own, beside ours; `given` is there in every template."""
        self.assets = assets
        self._environment = jinja2.Environment(
            loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in (*packages, "forenotice.portal")]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            bytecode_cache=_COMPILED,
        )
        self._environment.filters |= {
            "approved_by": wording.approved_by,
            "failed": wording.failed,
            "fields": msgspec.structs.asdict,
            "linked": linked,
            "machine": machine,
            "mark": mark,
            "moment": moment,
            "relative": relative,
            "sentence": wording.sentence,
            "several": wording.several,
            "span": span,
            "utc": utc,
        }
        self._environment.globals |= {"asset": assets.url, "form_key": form_key, "VERSION": __version__, **given}

    def page(self, template: str, **context: Any) -> str:
        return self._environment.get_template(template).render(context)


def form_key() -> str:
    """What holds a form to being carried out once."""
    return secrets.token_urlsafe(12)


def read(value: str | datetime) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def utc(value: str | datetime) -> str:
    """As our sentences have it, to the second."""
    return f"{read(value).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def machine(value: str | datetime) -> str:
    """As machines read it."""
    return f"{read(value).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def moment(value: str | datetime | None, otherwise: str = "–") -> Markup:
    """In UTC; with scripts, the page shows it in the viewer's zone."""
    if value is None or value == "":
        return escape(otherwise)
    return Markup('<time datetime="{}">{}</time>').format(machine(value), utc(value))


def span(value: float | timedelta) -> str:
    """The two largest units that say something: `1 d 2 h`, `4 min 12 s`, `0 s`."""
    seconds = round(value.total_seconds() if isinstance(value, timedelta) else value)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def relative(value: str | datetime, now: datetime) -> str:
    """`in 4 min 12 s`, `3 s ago`."""
    ahead = read(value) - now
    if abs(ahead) < timedelta(seconds=1):
        return "now"
    return f"in {span(ahead)}" if ahead > timedelta(0) else f"{span(-ahead)} ago"


def mark(at: datetime, drawn: Timeline) -> str:
    """On the scale of a picture: a day where marks are days apart, else the time of day."""
    width = drawn.end - drawn.begin
    if width < timedelta(minutes=5):
        return f"{at:%H:%M:%S}"
    return f"{at:%d %b}" if width > MOST_MARKS * HALF_DAY or (at.hour, at.minute) == (0, 0) else f"{at:%H:%M}"


def linked(sentence: str) -> Markup:
    """A sentence of the service, with its times as times and what it names by id as links."""
    text = str(escape(sentence))
    text = MOMENT.sub(lambda found: _timed(found[0]), text)
    return Markup(NAMED.sub(_link, text))  # noqa: S704 - escaped above


def _timed(text: str) -> str:
    try:
        return str(moment(datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)))
    except ValueError:
        return text  # Somebody else's words, such as a driver's, that only look like a time.


def _link(found: re.Match[str]) -> str:
    noun, name = found[1], found[2]
    shown = f'<abbr title="{name}">{name[:SHORT]}</abbr>'
    return f'{noun} <a href="/{noun.lower()}s/{name}">{shown}</a>'
