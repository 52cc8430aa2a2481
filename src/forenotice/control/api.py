"""/v1: the table of routes, and what each of them asks the service for."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from starlette.responses import Response, StreamingResponse

from forenotice.control import export, openapi, parameters, responses, stream
from forenotice.control.router import Handler, Route
from forenotice.core import errors
from forenotice.core.fleet import group_key, standalone_key
from forenotice.core.roles import Access, Need
from forenotice.core.selectors import Selector
from forenotice.delivery import subscriptions
from forenotice.service import fleet, history, maintenance, queries, results, rollouts, tokens
from forenotice.service.calls import Call
from forenotice.service.service import Service
from forenotice.service.tokens import Caller
from forenotice.views import base
from forenotice.views import fleet as fleet_views
from forenotice.views import history as history_views
from forenotice.views import maintenance as maintenance_views
from forenotice.views import rollouts as rollout_views
from forenotice.views import subscriptions as subscription_views
from forenotice.views import tokens as token_views
from forenotice.views.base import Name, Page

if TYPE_CHECKING:
    from forenotice.control.app import Api

PREFIX = "/v1"
DESCRIPTION = f"{PREFIX}/openapi.json"
KEY = re.compile(openapi.KEY_PATTERN)
FORMATS = {"application/json": "json", "application/toml": "toml"}
DOCUMENT: Mapping[str, Any] = {
    "application/json": {"schema": {"type": "object"}, "example": msgspec.to_builtins(fleet_views.FLEET)},
    "application/toml": {"schema": {"type": "string"}, "example": fleet_views.FLEET_AS_TOML},
}
EXPORTED: Mapping[str, Any] = {kind: {"schema": {"type": "string"}} for kind in ("application/jsonl", "text/csv")}
STREAMED: Mapping[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
LAST_EVENT_ID: Mapping[str, Any] = {
    "name": "last-event-id",
    "description": "The position of the last entry that was read.",
    "schema": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """What is settled before a handler sees a request."""

    api: "Api"
    caller: Caller
    body: bytes
    headers: Mapping[str, str]
    digest: str
    """The same for the same request, so that a key can be held to one."""
    origin: str
    """The address that it came from."""
    is_connected: Callable[[], bool]
    """Whether the client is still connected."""

    @property
    def service(self) -> Service:
        return self.api.service

    @property
    def access(self) -> Access:
        return self.caller.access

    @property
    def seen(self) -> Selector | None:
        """Whose things the caller may see; None: everybody's."""
        return self.caller.access.scopes

    @property
    def call(self) -> Call:
        key = self.headers.get("idempotency-key")
        if key is not None and not KEY.fullmatch(key):
            raise errors.RefusedError("Idempotency-Key must be 1 to 200 printable ASCII characters without spaces")
        return Call(
            actor=self.caller.actor,
            token_id=self.caller.id,
            key=key,
            digest=self.digest,
            origin=self.origin,
            reason=_reason(self.headers.get("forenotice-reason", "")),
            access=self.access,
            is_connected=self.is_connected,
        )

    def is_allowed(self) -> bool:
        """Whether the token is still valid, for responses that take their time."""
        bearer = self.headers["authorization"].partition(" ")[2].strip()
        try:
            return tokens.authenticate(self.service, bearer, self.origin).access.scopes == self.seen
        except errors.ForenoticeError:
            return False

    def document(self) -> fleet_views.Fleet:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in FORMATS:
            raise errors.RefusedError(f"{kind or 'no type'!r} is not the type of a fleet: send {' or '.join(FORMATS)}")
        return fleet.parse(self.body, FORMATS[kind])


def digest(method: str, target: bytes, body: bytes) -> str:
    return hashlib.sha256(b"\0".join((method.encode(), target, body))).hexdigest()


def _reason(given: str) -> str:
    # Percent-encoded, because a header takes no more than ASCII from one end to the other.
    try:
        return base.require_reason(unquote(given.encode("ascii").decode(), errors="strict"))
    except UnicodeError:
        raise errors.RefusedError("Forenotice-Reason must be percent-encoded UTF-8") from None


def show_description(request: ApiRequest) -> Response:
    return responses.JsonResponse(request.api.description)


def add_vm(request: ApiRequest, body: fleet_views.NewVm) -> fleet_views.AddedVm:
    return fleet.add_vm(request.service, request.call, body.spec())


def change_group(request: ApiRequest, name: Name, body: fleet_views.GroupChange) -> fleet_views.Group:
    return fleet.set_group(request.service, request.call, name, body.policy)


def change_vm_policy(request: ApiRequest, name: Name, body: fleet_views.PolicyChange) -> fleet_views.Policy:
    return fleet.set_policy(request.service, request.call, standalone_key(name), body)


def change_group_policy(request: ApiRequest, name: Name, body: fleet_views.PolicyChange) -> fleet_views.Policy:
    return fleet.set_policy(request.service, request.call, group_key(name), body)


def apply_fleet(request: ApiRequest, query: parameters.Apply) -> fleet_views.Applied:
    """Make the fleet as the document says, in one transaction. VMs that exist stay on their hosts unless `move`."""
    document = request.document()
    return fleet.apply(
        request.service, request.call, document, prune=query.prune, move=query.move, dry_run=query.dry_run
    )


def diff_fleet(request: ApiRequest) -> fleet_views.Compared:
    """How the fleet differs from the document; nothing is done."""
    return fleet.diff(request.service, request.document())


def schedule_operations(request: ApiRequest, body: maintenance_views.NewOperation) -> maintenance_views.Operations:
    """One operation for each VM (restart, redeploy, eviction, deletion) or host (the others): all of them or none."""
    notice = None if body.notice_minutes is None else timedelta(minutes=body.notice_minutes)
    return maintenance.schedule(
        request.service,
        request.call,
        kind=body.kind,
        names=body.names,
        notice=notice,
        duration=body.duration_seconds,
        reason=body.reason,
    )


def report_result(
    request: ApiRequest, operation_id: base.Id, body: maintenance_views.DriverResult
) -> maintenance_views.Operation:
    """Report the result of an attempt, for every VM in it. The first report counts; a repetition changes nothing.

    The `result_token` of the driver's call is enough for this."""
    if request.caller.call not in (None, (operation_id, body.attempt)):
        raise errors.ForbiddenError("this token belongs to another call: give that of the call you report on")
    return results.record(
        request.service, request.call, operation_id, attempt=body.attempt, done=body.done, failures=body.failures
    )


def start_rollout(request: ApiRequest, body: rollout_views.NewRollout) -> rollout_views.Rollout:
    """Maintenance of many hosts, wave by wave; refused when some budget or window makes it impossible."""
    call = request.call.because(body.reason)
    return rollouts.start(request.service, call, body.spec(call.reason))


def plan_rollout(request: ApiRequest, body: rollout_views.NewRollout) -> rollout_views.RolloutPlan:
    """How it would go if it were started now; nothing is done."""
    return rollouts.plan(request.service, body.spec(body.reason))


def pause_rollout(
    request: ApiRequest, rollout_id: base.Id, body: rollout_views.Because | None
) -> rollout_views.Rollout:
    """Nothing of it starts until it is resumed; what has started goes on to its end."""
    return rollouts.pause(request.service, _because(request.call, body), rollout_id)


def resume_rollout(
    request: ApiRequest, rollout_id: base.Id, body: rollout_views.Resumption | None
) -> rollout_views.Rollout:
    retry = body is not None and body.retry
    return rollouts.resume(request.service, _because(request.call, body), rollout_id, retry=retry)


def cancel_rollout(
    request: ApiRequest, rollout_id: base.Id, body: rollout_views.Because | None
) -> rollout_views.Rollout:
    """What is only Scheduled is cancelled; what has started goes on to its end."""
    return rollouts.cancel(request.service, _because(request.call, body), rollout_id)


def _because(call: Call, body: rollout_views.Because | None) -> Call:
    return call if body is None else call.because(body.reason)


def list_history(request: ApiRequest, query: parameters.HistoryQuery) -> Page[history_views.Entry]:
    """Everything that happened, from the journal. What is new meanwhile changes no page that follows."""
    wanted = query.filter(request.access)
    return history.page(request.service, wanted, after=query.after, limit=query.limit, newest_first=query.newest_first)


def export_history(request: ApiRequest, query: parameters.ExportQuery) -> StreamingResponse:
    """All that fits, oldest first, as a stream that ends with what had happened when it was asked for."""
    pages = history.everything(request.service, query.filter(request.access))
    return export.streamed(query.format, pages, request.is_allowed)


def prune_history(request: ApiRequest, body: history_views.Prune) -> history_views.Pruned:
    """Remove what is older, but nothing live and nothing that is still to be delivered to a subscription.

    It takes at most 20 seconds; unless `complete`, ask again under another key.
    """
    return history.prune(request.service, request.call, before=base.in_utc(body.before), dry_run=body.dry_run)


def stream_history(request: ApiRequest, query: parameters.StreamQuery) -> stream.EventStream:
    """What happens, as it happens: each entry of the history behind a position, or from now on."""
    tail = request.api.tail
    position = tail.begin(query.after, request.headers.get("last-event-id"))
    return stream.EventStream(tail, position, query, request.caller, request.is_allowed)


def replay_subscription(
    request: ApiRequest, name: parameters.IdOrName, body: subscription_views.Replay
) -> subscription_views.Subscription:
    """Deliver again all that is behind a journal position, under the same ids."""
    return subscriptions.replay(request.service, request.call, name, body.after)


def create_token(request: ApiRequest, body: token_views.NewToken) -> token_views.CreatedToken:
    """The token itself is shown this once."""
    given = body.given() | {"expires_in": tokens.lifetime(body.expires_in)}
    return tokens.create(request.service, request.call, **given)


def rotate_token(request: ApiRequest, token_id: base.Id, body: token_views.TokenRotation) -> token_views.CreatedToken:
    """Gives the token a new secret, which is shown this once."""
    return tokens.rotate(
        request.service,
        request.call,
        token_id,
        overlap=tokens.OVERLAP if body.overlap is msgspec.UNSET else tokens.span(body.overlap),
        expires_in=tokens.lifetime(body.expires_in),
    )


ID_OR_NAME: Mapping[str, Any] = {"name": parameters.IdOrName}
ABOUT: Mapping[str, str] = {
    "list_drift": "How hosts with an inventory differ from the fleet, until that is settled.",
    "list_edges": "By host, as the service process that responds hears them.",
    "forget_edge": "Nothing waits for this edge any more. One that still runs registers again with its next beat.",
    "explain_operation": "Why it waits: for whom, for what, since when, until when.",
    "explain_event": "Why it waits: for whom, for what, until when.",
    "approve_event": "Approve in place of the event's guests.",
    "cancel_event": "Cancel the whole operation, while it is Scheduled.",
    "list_rollouts": "The newest first.",
    "explain_rollout": "Why it is where it is: its pause, its gate, its windows, whom its operations wait for.",
    "add_subscription": "Push what happens to a receiver, as signed CloudEvents. The secret is shown this once.",
    "remove_subscription": "With its pending deliveries.",
    "resume_subscription": "One that is parked goes on where it was; one that pauses after failures tries at once.",
    "try_subscription": "Send the receiver one message now, and show its response.",
    "list_deliveries": "Its pending deliveries, with what went wrong.",
}
"""Descriptions of the service's functions; handlers have docstrings."""


def _route(method: str, path: str, need: Need, handler: Handler, name: str = "", **options: Any) -> Route:
    return Route(method, path, need, handler, name, about=ABOUT.get(name, ""), **options)


_get, _post, _patch, _delete = (partial(_route, method) for method in ("GET", "POST", "PATCH", "DELETE"))

ROUTES = (
    _get(DESCRIPTION, Need.SEE, show_description, described=False),
    _get("/v1/hosts", Need.OVERSEE, queries.hosts, "list_hosts", query=parameters.HostQuery),
    _post("/v1/hosts", Need.MANAGE, fleet.add_host, "add_host", status=201),
    _get("/v1/hosts/{name}", Need.OVERSEE, queries.host, "show_host"),
    _patch("/v1/hosts/{name}", Need.MANAGE, fleet.set_host, "change_host"),
    _delete("/v1/hosts/{name}", Need.MANAGE, fleet.remove_host, "remove_host"),
    _get("/v1/edges", Need.OVERSEE, queries.edges, "list_edges", query=parameters.EdgeQuery),
    _get("/v1/edges/{host}", Need.OVERSEE, queries.edge, "show_edge"),
    _delete("/v1/edges/{host}", Need.MANAGE, fleet.forget_edge, "forget_edge"),
    _get("/v1/vms", Need.SEE, queries.vms, "list_vms", query=parameters.VmQuery),
    _post("/v1/vms", Need.MANAGE, add_vm, status=201),
    _get("/v1/vms/{name}", Need.SEE, queries.vm, "show_vm"),
    _patch("/v1/vms/{name}", Need.MANAGE, fleet.set_vm, "change_vm"),
    _delete("/v1/vms/{name}", Need.MANAGE, fleet.remove_vm, "remove_vm"),
    _patch("/v1/vms/{name}/policy", Need.MANAGE, change_vm_policy),
    _get("/v1/groups", Need.SEE, queries.groups, "list_groups", query=parameters.GroupQuery),
    _post("/v1/groups", Need.MANAGE, fleet.add_group, "add_group", status=201),
    _get("/v1/groups/{name}", Need.SEE, queries.group, "show_group"),
    _patch("/v1/groups/{name}", Need.MANAGE, change_group),
    _delete("/v1/groups/{name}", Need.MANAGE, fleet.remove_group, "remove_group"),
    _patch("/v1/groups/{name}/policy", Need.MANAGE, change_group_policy),
    _get("/v1/fleet", Need.OVERSEE, fleet.export, "export_fleet"),
    _post("/v1/fleet", Need.MANAGE, apply_fleet, accepts=DOCUMENT),
    _get("/v1/fleet/drift", Need.OVERSEE, queries.drift, "list_drift", query=parameters.DriftQuery),
    _post("/v1/fleet/diff", Need.OVERSEE, diff_fleet, accepts=DOCUMENT, changes=False, expensive=True),
    _get("/v1/operations", Need.SEE, queries.operations, "list_operations", query=parameters.OperationQuery),
    _post("/v1/operations", Need.OPERATE, schedule_operations, status=201),
    _get("/v1/operations/{operation_id}", Need.SEE, queries.operation, "show_operation"),
    _get("/v1/operations/{operation_id}/explanation", Need.SEE, queries.explain_operation, "explain_operation"),
    _post("/v1/operations/{operation_id}/cancel", Need.OPERATE, maintenance.cancel_operation, "cancel_operation"),
    _post("/v1/operations/{operation_id}/result", Need.MANAGE, report_result),
    _get("/v1/events", Need.SEE, queries.events, "list_events", query=parameters.EventQuery),
    _get("/v1/events/{event_id}", Need.SEE, queries.event, "show_event"),
    _get("/v1/events/{event_id}/explanation", Need.SEE, queries.explain_event, "explain_event"),
    _post("/v1/events/{event_id}/approve", Need.OPERATE, maintenance.approve, "approve_event"),
    _post("/v1/events/{event_id}/cancel", Need.OPERATE, maintenance.cancel_event, "cancel_event"),
    _get("/v1/rollouts", Need.OVERSEE, rollouts.page, "list_rollouts", query=parameters.RolloutQuery),
    _post("/v1/rollouts", Need.MANAGE, start_rollout, status=201),
    _post("/v1/rollouts/plan", Need.OVERSEE, plan_rollout, changes=False, expensive=True),
    _get("/v1/rollouts/{rollout_id}", Need.OVERSEE, rollouts.show, "show_rollout"),
    _get(
        "/v1/rollouts/{rollout_id}/hosts",
        Need.OVERSEE,
        rollouts.hosts,
        "list_rollout_hosts",
        query=parameters.RolloutHostQuery,
    ),
    _get("/v1/rollouts/{rollout_id}/explanation", Need.OVERSEE, rollouts.explain, "explain_rollout"),
    _post("/v1/rollouts/{rollout_id}/pause", Need.MANAGE, pause_rollout),
    _post("/v1/rollouts/{rollout_id}/resume", Need.MANAGE, resume_rollout),
    _post("/v1/rollouts/{rollout_id}/cancel", Need.MANAGE, cancel_rollout),
    _get("/v1/history", Need.SEE, list_history),
    _get("/v1/history/export", Need.SEE, export_history, sends=EXPORTED),
    _post("/v1/history/prune", Need.MANAGE, prune_history),
    _get("/v1/stream", Need.SEE, stream_history, sends=STREAMED, headers=[LAST_EVENT_ID]),
    _get(
        "/v1/subscriptions",
        Need.OVERSEE,
        subscriptions.list_all,
        "list_subscriptions",
        query=parameters.SubscriptionQuery,
    ),
    _post("/v1/subscriptions", Need.MANAGE, subscriptions.create, "add_subscription", status=201),
    _get("/v1/subscriptions/{name}", Need.OVERSEE, subscriptions.show, "show_subscription", kinds=ID_OR_NAME),
    _patch("/v1/subscriptions/{name}", Need.MANAGE, subscriptions.change, "change_subscription", kinds=ID_OR_NAME),
    _delete("/v1/subscriptions/{name}", Need.MANAGE, subscriptions.remove, "remove_subscription", kinds=ID_OR_NAME),
    _post(
        "/v1/subscriptions/{name}/resume", Need.MANAGE, subscriptions.resume, "resume_subscription", kinds=ID_OR_NAME
    ),
    _post("/v1/subscriptions/{name}/replay", Need.MANAGE, replay_subscription, kinds=ID_OR_NAME),
    _post("/v1/subscriptions/{name}/test", Need.MANAGE, subscriptions.test, "try_subscription", kinds=ID_OR_NAME),
    _get(
        "/v1/subscriptions/{name}/deliveries",
        Need.OVERSEE,
        subscriptions.deliveries,
        "list_deliveries",
        query=parameters.DeliveryQuery,
        kinds=ID_OR_NAME,
    ),
    _get("/v1/tokens", Need.ADMINISTER, tokens.page, "list_tokens", query=parameters.Oldest),
    _post("/v1/tokens", Need.ADMINISTER, create_token, status=201),
    _post("/v1/tokens/{token_id}/rotate", Need.ADMINISTER, rotate_token),
    _delete("/v1/tokens/{token_id}", Need.ADMINISTER, tokens.revoke, "revoke_token"),
)
