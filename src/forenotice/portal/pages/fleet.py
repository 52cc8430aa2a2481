"""/fleet and the pages of one host, group and VM: where VMs are, how they are, what happened, what can be done."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.fleet import NAME, SHUTDOWN_TIMEOUT, Listening, VmState, group_key, standalone_key
from forenotice.core.operations import Kind
from forenotice.core.roles import Need
from forenotice.core.timing import SILENCE
from forenotice.portal import forms
from forenotice.portal.page import PageRequest, Pages
from forenotice.portal.pages.act import actions_on
from forenotice.portal.renderer import span
from forenotice.service import fleet, fleet_map, history, overview, queries
from forenotice.store.journal import JournalFilter
from forenotice.views.fleet import HostChange, Policy, PolicyChange
from forenotice.views.history import Entry

AFTER = re.compile(rf"(?:(?:group|vm):)?{NAME.pattern}")
"""A host's name or a scope's key, behind which a page begins."""
LONGEST_SEARCH = 200
DRIFT = 50
"""Of a host."""
RECENT_ENTRIES = 6
VMS = 100
"""Of one page."""
SIGNS: Mapping[str, str] = {
    VmState.FINE: "✓",
    VmState.SCHEDULED: "◷",
    VmState.STARTED: "►",
    VmState.MISSING: "?",
    VmState.NOT_LISTENING: "⊘",
}
"""The state of a VM, also for readers who cannot tell the colours apart."""
MEANINGS: Mapping[str, str] = {
    VmState.FINE: "nothing is planned",
    VmState.SCHEDULED: "maintenance is announced",
    VmState.STARTED: "maintenance is under way",
    VmState.MISSING: "its host does not have it",
    VmState.NOT_LISTENING: "nothing is planned, and no guest polls for events",
}
NOUNS = {"hosts": "host", "groups": "group", "vms": "VM"}
AUTO_APPROVED = ("auto_approve_restart", "auto_approve_redeploy")
OF_ALL = ("listening", *AUTO_APPROVED, "max_user_operations", "windows", "shutdown_timeout_seconds")
OF_GROUPS = ("terminate_notice_minutes", "max_unavailable", "min_available")
"""Fields of a policy that a standalone VM cannot have."""
USUAL_SHUTDOWN = f"{SHUTDOWN_TIMEOUT.total_seconds():g}"
LABELS: Mapping[str, str] = {
    "auto_approve_restart": "Users' restarts are approved by themselves",
    "auto_approve_redeploy": "Users' redeploys are approved by themselves",
    "max_user_operations": "Users' operations at once, at most",
    "terminate_notice_minutes": "Minutes' notice of a deletion",
    "shutdown_timeout_seconds": "Seconds that a VM may take to shut down",
    "max_unavailable": "VMs down at once for planned maintenance, at most",
    "min_available": "VMs that planned maintenance leaves, at least",
}
LABELLED = re.compile(rf"\b({'|'.join(LABELS)})\b")
LISTENING: Mapping[str, str] = {
    Listening.AUTO: f"while it asks: from a first poll on, until it has been silent for {span(SILENCE)}",
    Listening.ALWAYS: "always: it is waited for, whether it asks or not",
    Listening.NEVER: "never: nobody there is waited for",
}
"""What each choice means; in full hours, as notices are, whatever the speed."""

Fields = dict[str, str]


def _missing(visit: PageRequest, error: errors.NotFoundError) -> Response:
    """The name may be misspelt, or have existed once: then its history is still there."""
    noun, name = NOUNS[visit.at.split("/")[1]], visit.path["name"]
    known = bool(NAME.fullmatch(name))
    filters = {"scope": group_key(name)} if noun == "group" else {noun.lower(): name}
    return visit.page(
        "fleet_missing.html",
        status=404,
        noun=noun,
        wanted=name[:64] if known else "",
        message=error.message,
        history_url=f"/history?{urlencode(filters)}" if known else "",
    )


pages = Pages(missing=_missing)


@pages.get("/fleet", needs=Need.SEE)
def show_fleet(visit: PageRequest) -> Response:
    wanted = visit.query.get("q", "").strip()
    context: dict[str, Any] = {"wanted": wanted, "error": "", "grid": None, "found": None, "by": "", "first": True}
    context |= {"next_url": None, "status": 200, "signs": SIGNS, "meanings": MEANINGS}
    if len(wanted) > LONGEST_SEARCH:
        error = "this is too long: a part of a name is enough"
        context |= {"status": 400, "wanted": wanted[:LONGEST_SEARCH], "error": error}
    elif wanted:
        try:
            context["found"] = queries.search(visit.service, wanted, see_hosts=visit.may(Need.OVERSEE), seen=visit.seen)
        except errors.RefusedError as refused:
            context |= {"status": 400, "error": refused.message}
    else:
        given = visit.query.get("after", "")
        after = given if AFTER.fullmatch(given) else None
        if visit.may(Need.OVERSEE) and visit.query.get("by") != "group":
            by, grid = "host", fleet_map.by_host(visit.service, after=after)
        else:
            by, grid = "group", fleet_map.by_group(visit.service, after=after, seen=visit.seen)
        following = "/fleet?" + urlencode({"by": by, "after": grid.next}) if grid.next else None
        context |= {"grid": grid, "by": by, "first": after is None, "next_url": following}
        context |= {"silent": frozenset(visit.service.silent), "lost": visit.service.edges.lost}
        context["has_edges"] = bool(visit.service.edges.hosts)
    return visit.page("fleet.html", **context)


# Hosts


@pages.get("/hosts/{name}", needs=Need.OVERSEE)
def show_host(visit: PageRequest) -> Response:
    name = _name(visit)
    return visit.page(
        "host.html",
        host=queries.host(visit.service, name),
        drift=queries.drift(visit.service, host=name, limit=DRIFT),
        heard=_last_poll(visit, None, host=name),
        edge=visit.service.edges.find(name),
        **_vms(visit, host=name),
        events=overview.of_host(visit.service, name, visit.access),
        planned=overview.planned(visit.service, visit.access, host=name),
        entries=_recent(visit, {"host": name}),
        actions=actions_on("host", visit),
    )


@pages.post("/hosts/{name}/cordon", needs=Need.MANAGE)
def cordon(visit: PageRequest) -> Response:
    return _set_cordoned(visit, True, "is cordoned: it takes no further VMs")


@pages.post("/hosts/{name}/uncordon", needs=Need.MANAGE)
def uncordon(visit: PageRequest) -> Response:
    return _set_cordoned(visit, False, "takes VMs again")


def _set_cordoned(visit: PageRequest, cordoned: bool, message: str) -> Response:
    name = _name(visit)
    fleet.set_host(visit.service, visit.call(), name, HostChange(cordoned=cordoned))
    return visit.go(f"/hosts/{name}", message=f"Host {name} {message}.")


# Groups and VMs, which have policies


@pages.get("/groups/{name}", needs=Need.SEE)
def show_group(visit: PageRequest, sent: Fields | None = None, error: errors.ForenoticeError | None = None) -> Response:
    name = _name(visit)
    group = queries.group(visit.service, name, visit.seen)
    return visit.page(
        "group.html",
        refusal=error,
        group=group,
        heard=_last_poll(visit, group.last_heard, scope=group_key(name)),
        **_vms(visit, group=name),
        events=overview.of_group(visit.service, name, visit.access),
        entries=_recent(visit, {"scope": group_key(name)}),
        **_policy_form(group.policy, sent, error),
    )


@pages.get("/vms/{name}", needs=Need.SEE)
def show_vm(visit: PageRequest, sent: Fields | None = None, error: errors.ForenoticeError | None = None) -> Response:
    name, version = _name(visit), _version(visit)
    [vm] = fleet_map.with_states(visit.service, [queries.vm(visit.service, name, visit.seen)])
    document = queries.document(visit.service, name, version, visit.seen)
    return visit.page(
        "vm.html",
        refusal=error,
        vm=vm,
        polled=visit.portal.polled(name),
        heard=_last_poll(visit, vm.last_heard, scope=vm.scope),
        events=overview.of_vm(visit.service, name, visit.access),
        planned=overview.planned(visit.service, visit.access, host=vm.host),
        entries=_recent(visit, {"vm": name}, *([] if vm.group else [{"scope": vm.scope}])),
        actions=[each for each in actions_on("VM", visit) if vm.spot or each.kind is not Kind.EVICTION],
        document=msgspec.json.format(document, indent=2).decode(),
        version=version,
        versions=queries.VERSIONS,
        **_policy_form(vm.policy, sent, error),
        signs=SIGNS,
        meanings=MEANINGS,
    )


@pages.get("/vms/{name}/document", needs=Need.SEE)
def show_document(visit: PageRequest) -> Response:
    """The bytes that the guest receives."""
    found = queries.document(visit.service, _name(visit), _version(visit), visit.seen)
    return Response(found, media_type="application/json")


@pages.get("/groups/{name}/policy", needs=Need.SEE)
@pages.get("/vms/{name}/policy", needs=Need.SEE)
def show_policy(visit: PageRequest) -> Response:
    return visit.go(f"/{visit.at.split('/')[1]}/{_name(visit)}#policy")


@pages.post("/groups/{name}/policy", needs=Need.MANAGE)
@pages.post("/vms/{name}/policy", needs=Need.MANAGE)
def change_policy(visit: PageRequest) -> Response:
    name, noun, sent = _name(visit), visit.at.split("/")[1], _sent(visit)
    grouped = noun == "groups"
    key = group_key(name) if grouped else standalone_key(name)
    try:
        fleet.set_policy(visit.service, visit.call(), key, _policy(visit, sent, grouped=grouped))
    except (errors.RefusedError, errors.ConflictError) as error:
        return (show_group if grouped else show_vm)(visit, sent, error)
    return visit.go(f"/{noun}/{name}", message=f"The policy of {NOUNS[noun]} {name} is changed.")


def _name(visit: PageRequest) -> str:
    name = visit.path["name"]
    if not NAME.fullmatch(name):
        raise errors.NotFoundError(f"there is no {NOUNS[visit.at.split('/')[1]]} {name[:80]!r}")
    return name


def _version(visit: PageRequest) -> str:
    return visit.query.get("api-version") or queries.VERSIONS[0]


def _vms(visit: PageRequest, *, host: str | None = None, group: str | None = None) -> dict[str, Any]:
    """A page of the VMs of a host or a group."""
    given = visit.query.get("after", "")
    after = given if NAME.fullmatch(given) else None
    found = queries.vms(visit.service, host=host, group=group, after=after, limit=VMS, seen=visit.seen)
    place = f"/hosts/{host}" if host else f"/groups/{group}"
    return {
        "vms": fleet_map.with_states(visit.service, found.items),
        "first": after is None,
        "next_url": f"{place}?{urlencode({'after': found.next})}#vms" if found.next else None,
        "signs": SIGNS,
    }


def _last_poll(visit: PageRequest, stored: datetime | None, **of: str) -> datetime | None:
    """The newest poll of any of these VMs; the store learns of polls only now and then."""
    polls = [at for name in fleet_map.names(visit.service, **of) if (at := visit.portal.polled(name))]
    return max([*polls, *([stored] if stored else [])], default=None)


def _recent(visit: PageRequest, *about: Mapping[str, Any]) -> list[Entry]:
    """The newest entries about any of these."""
    found: dict[int, Entry] = {}
    for filters in about:
        wanted = JournalFilter(seen=visit.seen, **filters)
        entries = history.page(visit.service, wanted, limit=RECENT_ENTRIES, newest_first=True)
        found |= {entry.seq: entry for entry in entries.items}
    return sorted(found.values(), key=lambda entry: -entry.seq)[:RECENT_ENTRIES]


# The form of a policy


def _policy_form(policy: Policy | None, sent: Fields | None, error: errors.ForenoticeError | None) -> dict[str, Any]:
    """What a page needs that shows the policy and its form, again where what was sent is refused."""
    shown = _fields(policy) if policy else {}
    return {"given": sent or shown, "error": _refusal(error), "listening": LISTENING, "labels": LABELS}


def _refusal(error: errors.ForenoticeError | None) -> str:
    """The API's sentence, with the names that fields have in the form."""
    if error is None:
        return ""
    sentence = LABELLED.sub(lambda found: f"“{LABELS[found[1]]}”", error.message)
    return sentence.replace("leave it out", "leave it empty")


def _fields(policy: Policy) -> Fields:
    """As the form shows it."""
    minutes = policy.terminate_notice_minutes
    numbers = {name: getattr(policy, name) for name in ("max_user_operations", "max_unavailable", "min_available")}
    return {
        "listening": policy.listening,
        **{name: "yes" if getattr(policy, name) else "" for name in AUTO_APPROVED},
        "terminate_notice_minutes": "" if minutes is None else f"{minutes:g}",
        **{name: "" if value is None else str(value) for name, value in numbers.items()},
        "windows": "\n".join(policy.windows),
        "shutdown_timeout_seconds": str(policy.shutdown_timeout_seconds),
        "reason": "",
    }


def _sent(visit: PageRequest) -> Fields:
    """As the form was sent, to be shown again."""
    return {name: visit.form.get(name, "").strip() for name in (*OF_ALL, *OF_GROUPS, "reason")}


def _policy(visit: PageRequest, sent: Fields, *, grouped: bool) -> PolicyChange:
    """The whole policy: what is left empty is not limited, or as usual."""
    values: dict[str, Any] = {
        "listening": sent["listening"],
        **{name: bool(sent[name]) for name in AUTO_APPROVED},
        "max_user_operations": forms.number(sent["max_user_operations"]),
        "windows": forms.lines(sent["windows"]),
        "shutdown_timeout_seconds": forms.number(sent["shutdown_timeout_seconds"] or USUAL_SHUTDOWN),
    }
    if grouped:
        values |= {name: forms.number(sent[name]) for name in OF_GROUPS}
    return visit.asked(PolicyChange, values)
