"""What a drain needs to know of the objects of a cluster; all else that the API server tells is left out."""

import msgspec

MIRROR = "kubernetes.io/config.mirror"
CORDON = "node.kubernetes.io/unschedulable"
"""The taint of a cordoned node."""
BUDGET = "DisruptionBudget"
"""The cause of an eviction's refusal."""


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"): ...


class Owner(_Object, frozen=True, kw_only=True):
    kind: str
    controller: bool = False


class Metadata(_Object, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None
    deletion_timestamp: str | None = None

    def annotation(self, key: str) -> str | None:
        return (self.annotations or {}).get(key)


class NodeSpec(_Object, frozen=True, kw_only=True):
    unschedulable: bool = False


class Fields(_Object, frozen=True, kw_only=True):
    spec: dict[str, msgspec.Raw] = msgspec.field(name="f:spec", default={})


class Managed(_Object, frozen=True, kw_only=True):
    """Which fields somebody was the last to change."""

    manager: str = ""
    fields: Fields | None = msgspec.field(name="fieldsV1", default=None)


class NodeMetadata(Metadata, frozen=True, kw_only=True):
    managed_fields: tuple[Managed, ...] | None = None


class Node(_Object, frozen=True, kw_only=True):
    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()

    @property
    def cordoned_by(self) -> frozenset[str]:
        """Whose cordon it is, if it is cordoned and the API server knows."""
        managed = self.metadata.managed_fields or ()
        return frozenset(part.manager for part in managed if part.fields and "f:unschedulable" in part.fields.spec)


class Toleration(_Object, frozen=True, kw_only=True):
    key: str = ""
    """Empty: every taint."""
    effect: str = ""
    """Empty: every effect."""


class PodSpec(_Object, frozen=True, kw_only=True):
    termination_grace_period_seconds: int = 30
    tolerations: tuple[Toleration, ...] | None = None


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = ""


class Pod(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def title(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def stays(self) -> bool:
        """A drain has no business with it: it belongs to the node, or has ended."""
        of_daemon_set = any(
            owner.controller and owner.kind == "DaemonSet" for owner in self.metadata.owner_references or ()
        )
        mirrored = self.metadata.annotation(MIRROR) is not None
        return of_daemon_set or mirrored or self.status.phase in ("Succeeded", "Failed")

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def tolerates_cordon(self) -> bool:
        return any(
            taint.key in ("", CORDON) and taint.effect in ("", "NoSchedule") for taint in self.spec.tolerations or ()
        )


class ListMetadata(_Object, frozen=True, kw_only=True):
    more: str = msgspec.field(name="continue", default="")
    """Where the next page begins; empty: this was the last."""


class Pods(_Object, frozen=True, kw_only=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Pod, ...] | None = None


class Cause(_Object, frozen=True, kw_only=True):
    reason: str = ""


class Details(_Object, frozen=True, kw_only=True):
    causes: tuple[Cause, ...] | None = None


class Status(_Object, frozen=True, kw_only=True):
    """How a request went, in the server's words."""

    status: str = ""
    message: str = ""
    code: int = 0
    details: Details | None = None

    @property
    def names_budget(self) -> bool:
        """As the cause of a refusal."""
        causes = self.details.causes if self.details else None
        return any(cause.reason == BUDGET for cause in causes or ())


class Access(_Object, frozen=True, kw_only=True):
    allowed: bool = False


class Review(_Object, frozen=True, kw_only=True):
    status: Access = Access()
