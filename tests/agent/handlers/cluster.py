"""A stub of a Kubernetes API server, for want of a real one: nodes, pods and disruption budgets in memory, behind HTTP.

It holds clients to the rules of the real one (for evictions, pkg/registry/core/pod/storage/eviction.go).
Time runs as it does outside, but a pod stops as soon as its `takes` are over, and controllers act at once.
"""

import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.acceptance.running import HOST
from tests.agent.parts import secret_file

TOKEN = "the-token-of-the-agent"
MERGING = ("application/strategic-merge-patch+json", "application/merge-patch+json")
ALL = frozenset({"get nodes", "patch nodes", "list pods", "create pods/eviction", "delete pods"})
CORDON = "node.kubernetes.io/unschedulable"


@dataclass
class Node:
    name: str
    unschedulable: bool = False
    cordoned_by: str = ""
    """The manager of that field; empty: it is not known, as on an old server."""
    annotations: dict[str, str] = field(default_factory=dict)
    version: int = 1


@dataclass
class Pod:
    name: str
    node: str = "node-1"
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner: str = "ReplicaSet"
    """The kind of its controller; empty: none."""
    phase: str = "Running"
    ready: bool = True
    grace: int = 30
    takes: float = 0.0
    """Seconds until its containers have stopped once they are told to."""
    tolerates: bool = False
    """The cordon."""
    uid: str = ""
    ends_at: float | None = None
    granted: int | None = None
    """Seconds of grace with which it was deleted."""


@dataclass
class Budget:
    name: str
    labels: dict[str, str]
    least: int
    namespace: str = "default"


@dataclass(frozen=True)
class Fault:
    """An answer out of turn."""

    method: str
    path: str
    """How it ends."""
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"

    def hits(self, method: str, path: str) -> bool:
        return method == self.method and path.endswith(self.path)


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, message: str, *, sent_as: int = 0, **details: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.details = status, message, details
        self.sent_as = sent_as or status


class Cluster:
    """One lock, taken for every request."""

    def __init__(self, *pods: Pod, page: int = 2) -> None:
        self.lock = threading.RLock()
        self.page = page
        """Pods on a page at most, whatever the client would take."""
        self.nodes = {name: Node(name) for name in ("node-1", "node-2")}
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, Pod] = {}
        self.budgets: list[Budget] = []
        self.allowed = set(ALL)
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, str]] = []
        self.meanwhile: deque[Callable[[], None]] = deque()
        """What others do after each of the next answers."""
        self._numbers = itertools.count(1)
        for pod in pods:
            self.add(pod)

    def add(self, pod: Pod) -> Pod:
        with self.lock:
            pod.uid = f"uid-{next(self._numbers)}"
            self.pods[pod.uid] = pod
            return pod

    def names(self, node: str = "node-1") -> list[str]:
        with self.lock:
            self.tick()
            return sorted(pod.name for pod in self.pods.values() if pod.node == node)

    def asked(self, method: str, ending: str) -> int:
        with self.lock:
            return sum(was == method and path.endswith(ending) for was, path in self.requests)

    # What time does

    def tick(self) -> None:
        now = time.monotonic()
        for pod in [pod for pod in self.pods.values() if pod.ends_at is not None and pod.ends_at <= now]:
            self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        del self.pods[pod.uid]
        self.gone[pod.uid] = pod
        if not pod.owner:
            return
        fitting = [node.name for node in self.nodes.values() if not node.unschedulable or pod.tolerates]
        homes = [pod.node] if pod.owner in ("DaemonSet", "Node") else [*fitting[::-1], ""]
        name = pod.name if pod.owner in ("StatefulSet", "Node") else f"{pod.name}x"
        self.add(
            Pod(
                name,
                homes[0],
                pod.namespace,
                pod.labels,
                pod.annotations,
                pod.owner,
                phase="Running" if homes[0] else "Pending",
                ready=bool(homes[0]),
                tolerates=pod.tolerates,
            )
        )

    # Nodes

    def read_node(self, name: str) -> dict[str, Any]:
        node = self._node(name)
        spec = {"podCIDR": "10.0.0.0/24"} | ({"unschedulable": True} if node.unschedulable else {})
        managers = [_managed("kubelet", "f:status", "f:conditions"), _managed("kubelet", "f:spec", "f:podCIDR")]
        if node.unschedulable and node.cordoned_by:
            managers.append(_managed(node.cordoned_by, "f:spec", "f:unschedulable"))
        metadata = {
            "name": name,
            "resourceVersion": str(node.version),
            "annotations": dict(node.annotations),
            "managedFields": managers,
        }
        return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {}}

    def patch_node(self, name: str, patch: dict[str, Any], manager: str) -> dict[str, Any]:
        node = self._node(name)
        _only(patch, "metadata", "spec")
        _only(patch.get("metadata", {}), "resourceVersion", "annotations")
        _only(patch.get("spec", {}), "unschedulable")
        if patch["metadata"].get("resourceVersion", str(node.version)) != str(node.version):
            raise Refusal(409, f'Operation cannot be fulfilled on nodes "{name}": the object has been modified')
        for key, value in patch["metadata"].get("annotations", {}).items():
            if value is None:
                node.annotations.pop(key, None)
            elif not isinstance(value, str):
                raise Refusal(422, "an annotation is a text")
            else:
                node.annotations[key] = value
        if "unschedulable" in patch.get("spec", {}):
            # Whoever changes a field owns it from then on.
            if node.unschedulable != bool(patch["spec"]["unschedulable"]):
                node.cordoned_by = manager
            node.unschedulable = bool(patch["spec"]["unschedulable"])
        node.version += 1
        return self.read_node(name)

    def _node(self, name: str) -> Node:
        if name not in self.nodes:
            raise Refusal(404, f'nodes "{name}" not found')
        return self.nodes[name]

    # Pods

    def list_pods(self, query: dict[str, str]) -> dict[str, Any]:
        selected = re.fullmatch(r"spec\.nodeName=([a-z0-9.-]+)", query.get("fieldSelector", "spec.nodeName=none"))
        if not selected:
            raise Refusal(400, "field label not supported")
        after = int(query.get("continue", "0"))
        limit = min(int(query["limit"]), self.page)
        found = [pod for pod in self.pods.values() if pod.node == selected[1] and _number(pod) > after]
        metadata = {"resourceVersion": "1"} | (
            {"continue": str(_number(found[limit - 1]))} if len(found) > limit else {}
        )
        return {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": [_shown(p) for p in found[:limit]],
        }

    def evict(self, namespace: str, name: str, eviction: dict[str, Any]) -> dict[str, Any]:
        if (eviction.get("apiVersion"), eviction.get("kind")) != ("policy/v1", "Eviction"):
            raise Refusal(400, "no Eviction of policy/v1")
        _only(eviction, "apiVersion", "kind", "metadata", "deleteOptions")
        if eviction["metadata"].get("name") != name:
            raise Refusal(400, "name in URL does not match name in Eviction object")
        if eviction["metadata"].get("namespace", namespace) != namespace:
            raise Refusal(400, "the namespace of the provided object does not match the namespace sent on the request")
        pod = self._pod(namespace, name)
        options = eviction.get("deleteOptions") or {}
        _check(pod, options)
        if pod.phase == "Running" and pod.ends_at is None:
            self._within_budget(pod)
        self._end(pod, options)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _within_budget(self, pod: Pod) -> None:
        budgets = [
            budget
            for budget in self.budgets
            if budget.namespace == pod.namespace and budget.labels and budget.labels.items() <= pod.labels.items()
        ]
        if len(budgets) > 1:
            raise Refusal(500, "This pod has more than one PodDisruptionBudget, which is not supported.", sent_as=201)
        for budget in budgets:
            healthy = sum(
                other.ready and other.ends_at is None and budget.labels.items() <= other.labels.items()
                for other in self.pods.values()
            )
            if not pod.ready and healthy >= budget.least > 0:
                continue
            if healthy - budget.least < 1:
                cause = (
                    f"The disruption budget {budget.name} needs {budget.least} healthy pods and has {healthy} currently"
                )
                raise Refusal(
                    429,
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    causes=[{"reason": "DisruptionBudget", "message": cause}],
                )

    def delete(self, namespace: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
        pod = self._pod(namespace, name)
        _check(pod, options)
        self._end(pod, options)
        return _shown(pod)

    def _end(self, pod: Pod, options: dict[str, Any]) -> None:
        grace = options.get("gracePeriodSeconds", pod.grace)
        if pod.granted is None or grace < pod.granted:
            pod.granted = grace
            pod.ends_at = time.monotonic() + min(pod.takes, grace)
        if grace == 0:
            self._remove(pod)

    def _pod(self, namespace: str, name: str) -> Pod:
        for pod in self.pods.values():
            if (pod.namespace, pod.name) == (namespace, name):
                return pod
        raise Refusal(404, f'pods "{name}" not found')

    # Rights

    def review(self, review: dict[str, Any]) -> dict[str, Any]:
        asked = review["spec"]["resourceAttributes"]
        what = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        return {**review, "metadata": {}, "status": {"allowed": f"{asked['verb']} {what}" in self.allowed}}

    def demand(self, what: str) -> None:
        if what not in self.allowed:
            verb, resource = what.split()
            raise Refusal(403, f'{resource} is forbidden: User "agent" cannot {verb} resource "{resource}"')

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, content: str) -> tuple[int, Any]:
        node = re.fullmatch(r"/api/v1/nodes/([^/]+)", path)
        pod = re.fullmatch(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)", path)
        eviction = re.fullmatch(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction", path)
        if method == "GET" and node:
            self.demand("get nodes")
            return 200, self.read_node(node[1])
        if method == "PATCH" and node:
            self.demand("patch nodes")
            if content not in MERGING:
                raise Refusal(415, f"the body of the request was in an unknown format: {content}")
            return 200, self.patch_node(node[1], body, query.get("fieldManager", "unknown"))
        if method == "GET" and path == "/api/v1/pods":
            self.demand("list pods")
            return 200, self.list_pods(query)
        if method in ("POST", "DELETE") and content not in ("", "application/json"):
            raise Refusal(415, f"the body of the request was in an unknown format: {content}")
        if method == "POST" and eviction:
            self.demand("create pods/eviction")
            return 201, self.evict(eviction[1], eviction[2], body)
        if method == "DELETE" and pod:
            self.demand("delete pods")
            return 200, self.delete(pod[1], pod[2], body or {})
        if method == "POST" and path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            return 201, self.review(body)
        raise Refusal(404, "the server could not find the requested resource")


def _number(pod: Pod) -> int:
    return int(pod.uid.removeprefix("uid-"))


def _managed(manager: str, part: str, key: str) -> dict[str, Any]:
    fields = {"fieldsType": "FieldsV1", "fieldsV1": {part: {".": {}, key: {}}}}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", **fields}


def _only(given: dict[str, Any], *known: str) -> None:
    for key in given:
        if key not in known:
            raise Refusal(400, f'unknown field "{key}"')


def _check(pod: Pod, options: dict[str, Any]) -> None:
    _only(options, "gracePeriodSeconds", "preconditions")
    grace = options.get("gracePeriodSeconds", 0)
    if not isinstance(grace, int) or grace < 0:
        raise Refusal(422, "gracePeriodSeconds: must be greater than or equal to 0")
    _only(options.get("preconditions", {}), "uid")
    if options.get("preconditions", {}).get("uid", pod.uid) != pod.uid:
        raise Refusal(409, "Precondition failed: UID in precondition does not match UID in object meta")


def _shown(pod: Pod) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "labels": pod.labels}
    if pod.annotations:
        metadata["annotations"] = pod.annotations
    if pod.owner:
        metadata["ownerReferences"] = [{"kind": pod.owner, "name": "owner", "uid": "u", "controller": True}]
    if pod.ends_at is not None:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": pod.granted}
    spec: dict[str, Any] = {"nodeName": pod.node, "terminationGracePeriodSeconds": pod.grace, "containers": []}
    if pod.tolerates:
        spec["tolerations"] = [{"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}]
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": pod.phase}}


class ApiServer:
    """Comes and goes, always at the same address; the cluster stays."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._port = 0
        self._server: _Listener | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        self._server = _Listener(self._port, self.cluster)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.hang_up()
            self._server.server_close()
            self._server = None

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> str:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "stub", "cluster": {"server": self.url}}],
            "users": [{"name": "agent", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "stub", "user": "agent"}}],
        }
        return str(secret_file(folder / "kubeconfig", json.dumps(content)))


@contextmanager
def serving(cluster: Cluster) -> Iterator[ApiServer]:
    server = ApiServer(cluster)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, cluster: Cluster) -> None:
        self.cluster = cluster
        self._open: set[Any] = set()
        super().__init__((HOST, port), _Answering)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for request in list(self._open):
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was hung up on."""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        where = urlsplit(self.path)
        query = {name: value for name, (value,) in parse_qs(where.query).items()}
        cluster = self.server.cluster
        with cluster.lock:
            cluster.requests.append((self.command, where.path))
            cluster.tick()
            if cluster.faults and cluster.faults[0].hits(self.command, where.path):
                fault = cluster.faults.popleft()
                self._send(fault.status, fault.body, fault.headers)
                return
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise Refusal(401, "Unauthorized")
                body = json.loads(content) if content else None
                sent_as, answer = cluster.answer(
                    self.command, where.path, query, body, self.headers.get("Content-Type", "")
                )
            except Refusal as refusal:
                sent_as, answer = refusal.sent_as, _status(refusal)
            if cluster.meanwhile:
                cluster.meanwhile.popleft()()
        self._send(sent_as, json.dumps(answer).encode(), {})

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _status(refusal: Refusal) -> dict[str, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": refusal.status}
    return {**status, "message": refusal.message, "details": refusal.details}
