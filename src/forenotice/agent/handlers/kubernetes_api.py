"""The requests to a Kubernetes API server that a drain needs, each made once and bounded in time, and its objects."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from kubernetes import client
from kubernetes import config as credentials
from kubernetes.client.rest import urllib3

from forenotice import __version__, secret_files
from forenotice.agent.handlers import HandlerError
from forenotice.agent.handlers.tables import Kubernetes
from forenotice.core import errors
from forenotice.programs import process

MANAGER = "forenotice-agent"
CONNECTIONS = 8
PAGE = 250
TIMEOUTS = (5.0, 15.0)
"""Seconds to connect, and to receive the response."""
LONGEST_MESSAGE = 200
TOO_MANY_REQUESTS = 429
MIRROR = "kubernetes.io/config.mirror"
CORDON = "node.kubernetes.io/unschedulable"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
T = TypeVar("T")


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of what the API server sends, only what a drain needs."""


class Owner(_Object, frozen=True):
    kind: str
    controller: bool = False


class Managed(_Object, frozen=True):
    """The fields that this manager was the last to change."""

    manager: str = ""
    fields: dict[str, Any] | None = msgspec.field(name="fieldsV1", default=None)


class Metadata(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None
    deletion_timestamp: str | None = None
    managed_fields: tuple[Managed, ...] | None = None
    more: str = msgspec.field(name="continue", default="")
    """Of a list: where the next page begins; empty: this was the last."""

    def annotation(self, key: str) -> str | None:
        return (self.annotations or {}).get(key)


class Node(_Object, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] = {}

    @property
    def cordoned(self) -> bool:
        return self.spec.get("unschedulable") is True

    @property
    def cordoned_by(self) -> frozenset[str]:
        """Who cordoned it, if the API server knows."""
        managed = self.metadata.managed_fields or ()
        return frozenset(part.manager for part in managed if "f:unschedulable" in (part.fields or {}).get("f:spec", {}))


class Toleration(_Object, frozen=True):
    """What is empty stands for every taint, and for every effect."""

    key: str = ""
    effect: str = ""


class PodSpec(_Object, frozen=True):
    termination_grace_period_seconds: int = 30
    tolerations: tuple[Toleration, ...] | None = None


class Pod(_Object, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: dict[str, Any] = {}

    @property
    def title(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{quote(self.metadata.namespace, safe='')}/pods/{quote(self.metadata.name, safe='')}"

    @property
    def stays(self) -> bool:
        """A drain leaves it: it belongs to the node, or has ended."""
        owners = self.metadata.owner_references or ()
        of_daemon_set = any(owner.controller and owner.kind == "DaemonSet" for owner in owners)
        mirrored = self.metadata.annotation(MIRROR) is not None
        return of_daemon_set or mirrored or self.status.get("phase") in ("Succeeded", "Failed")

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def tolerates_cordon(self) -> bool:
        tolerated = self.spec.tolerations or ()
        return any(taint.key in ("", CORDON) and taint.effect in ("", "NoSchedule") for taint in tolerated)


class Pods(_Object, frozen=True):
    metadata: Metadata = Metadata()
    items: tuple[Pod, ...] | None = None


class Status(_Object, frozen=True):
    status: str = ""
    message: str = ""
    code: int = 0
    details: dict[str, Any] | None = None


class Review(_Object, frozen=True):
    status: dict[str, Any] = {}


class ApiError(HandlerError):
    """The API server refused, or did not answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float = 0.0, by_budget: bool = False) -> None:
        """A status of 0: there was no response. `by_budget`: a disruption budget does not allow an eviction."""
        super().__init__(message[:LONGEST_MESSAGE])
        self.status = status
        self.retry_after = retry_after
        self.by_budget = by_budget

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 409, 410, TOO_MANY_REQUESTS) or self.status >= 500


class Api:
    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self._client = client.ApiClient(configuration)

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def node(self, name: str) -> Node:
        return self._send(Node, "GET", f"/api/v1/nodes/{quote(name, safe='')}")

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> None:
        """With a resourceVersion in its metadata, only if nobody changed the node since."""
        self._send(Node, "PATCH", f"/api/v1/nodes/{quote(name, safe='')}?fieldManager={MANAGER}", patch)

    def pods(self, node: str) -> Iterator[Pod]:
        query = {"fieldSelector": f"spec.nodeName={node}", "limit": PAGE}
        while True:
            page = self._send(Pods, "GET", f"/api/v1/pods?{urlencode(query)}")
            yield from page.items or ()
            if not page.metadata.more:
                return
            query["continue"] = page.metadata.more

    def evict(self, pod: Pod, grace: int | None) -> None:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
            "deleteOptions": _delete_options(pod, grace),
        }
        status = self._send(Status, "POST", f"{pod.path}/eviction", eviction)
        # A pod with two budgets is refused in the body of a 201.
        if status.status == "Failure":
            raise ApiError(status.message, status=status.code, by_budget=True)

    def delete(self, pod: Pod, grace: int) -> None:
        """Regardless of its disruption budget."""
        self._send(msgspec.Raw, "DELETE", pod.path, _delete_options(pod, grace))

    def may(self, verb: str, resource: str, subresource: str) -> bool:
        spec = {"resourceAttributes": {"verb": verb, "resource": resource, "subresource": subresource}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        return self._send(Review, "POST", REVIEWS, review).status.get("allowed") is True

    def _send(self, kind: type[T], method: str, target: str, body: Mapping[str, Any] | None = None) -> T:
        patch = "strategic-merge-patch+" if method == "PATCH" else ""
        headers = {
            "Accept": "application/json",
            "Content-Type": f"application/{patch}json",
            "User-Agent": f"{MANAGER}/{__version__}",
            # Read anew: tokens expire.
            **{setting["key"]: setting["value"] for setting in self._configuration.auth_settings().values()},
        }
        # Below the library's models and methods: to load them takes seconds that an eviction is short of.
        request = self._client.rest_client.request
        url = self._configuration.host + target
        try:
            response = request(method, url, headers=headers, body=body, _request_timeout=TIMEOUTS)
            content = response.data or response.read()
        except client.ApiException as error:
            raise _refused(error.status, error.reason, error.headers, error.body) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(f"the API server does not answer ({type(error).__name__})") from None
        if not 200 <= response.status < 300:
            raise _refused(response.status, response.reason, response.headers, content)
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise ApiError(f"the API server's response is not understood: {error}") from None


def connect(config: Kubernetes) -> Api:
    configuration = client.Configuration()
    # Otherwise urllib3 would retry by itself, and wait for as long as any Retry-After says.
    configuration.retries = False
    configuration.connection_pool_maxsize = CONNECTIONS
    try:
        if config.kubeconfig:
            # It may name programs to run.
            secret_files.read(Path(config.kubeconfig), "the kubeconfig")
            given = {"config_file": config.kubeconfig, "context": config.context or None}
            credentials.load_kube_config(**given, client_configuration=configuration, persist_config=False)
        else:
            credentials.load_incluster_config(client_configuration=configuration)
    except Exception as error:
        match error:
            case credentials.ConfigException() | errors.RefusedError():
                why = str(error)
            case OSError():
                why = process.reason(error)
            case _:
                # The library fails in many ways on a file that is no kubeconfig, and some of them quote it.
                why = f"it is not understood ({type(error).__name__})"
        where = config.kubeconfig or "the service account"
        raise HandlerError(f"{where} gives no way to the API server: {why}") from None
    return Api(configuration)


def _delete_options(pod: Pod, grace: int | None) -> Mapping[str, Any]:
    """For this pod only, not for a later one of the same name."""
    options = {"preconditions": {"uid": pod.metadata.uid}}
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


def _refused(status: int, reason: str, headers: Mapping[str, str] | None, content: str | bytes | None) -> ApiError:
    try:
        found = msgspec.json.decode(content or b"", type=Status)
    except msgspec.MsgspecError:
        found = Status()
    causes = (found.details or {}).get("causes") or ()
    after = (headers or {}).get("Retry-After", "")
    return ApiError(
        found.message or (f"the API server answers {status} {reason}" if status else f"no answer: {reason}"),
        status=status,
        retry_after=float(after) if after.isdecimal() else 0.0,
        by_budget=status == TOO_MANY_REQUESTS and any(cause.get("reason") == "DisruptionBudget" for cause in causes),
    )
