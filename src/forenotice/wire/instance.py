"""What a VM is told of itself under `/metadata/instance`: the whole, a part, or one leaf as text."""

import re
from collections.abc import Mapping, Sequence
from datetime import date

import msgspec

from forenotice.core import errors
from forenotice.core.fleet import Scope, ScopeKind, Vm
from forenotice.wire import versions

OLDEST_VERSION = date(2017, 4, 2)

_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Node = str | Sequence["Node"] | Mapping[str, "Node"]


def accepts_version(text: str) -> bool:
    if not _VERSION.fullmatch(text):
        return False
    try:
        return date.fromisoformat(text) >= OLDEST_VERSION
    except ValueError:
        return False


def versions_body() -> bytes:
    """Those that Scheduled Events and `/metadata/instance` both accept: a client may pick any for either."""
    known = [version.name for version in versions.ALL if accepts_version(version.name)]
    return msgspec.json.encode({"apiVersions": known})


def leaf(vm: Vm, scope: Scope, path: tuple[str, ...], as_text: bool) -> bytes:
    """What a path below `/metadata/instance` names, such as `("compute", "name")`: a node as JSON, a leaf as text."""
    node: Node = _tree(vm, scope)
    # A trailing slash leaves an empty segment, and means the same.
    for segment in filter(None, path):
        children = _children(node)
        if segment.lower() not in children:
            raise errors.NotFoundError(
                f"there is no {segment[:80]!r} here: the keys are {', '.join(sorted(children)) or 'none, it is a leaf'}"
            )
        node = children[segment.lower()]
    if isinstance(node, str):
        if not as_text:
            raise errors.RefusedError("this is a single value: ask for it with format=text")
        return node.encode()
    if as_text:
        raise errors.RefusedError("this is not a single value: ask for it without format=text, or for a leaf below it")
    return msgspec.json.encode(node)


def _children(node: Node) -> dict[str, Node]:
    if isinstance(node, str):
        return {}
    if isinstance(node, Mapping):
        return {key.lower(): child for key, child in node.items()}
    return {str(index): child for index, child in enumerate(node)}


def _tree(vm: Vm, scope: Scope) -> Mapping[str, Node]:
    return {"compute": _compute(vm, scope), "network": {"interface": [_interface(vm.addresses)]}}


def _compute(vm: Vm, scope: Scope) -> Mapping[str, Node]:
    facts = vm.facts
    in_scale_set = scope.kind is ScopeKind.PLACEMENT_GROUP
    scale_set = vm.name.rpartition("_")[0] if in_scale_set else ""
    # In alphabetical order, at every level.
    return {
        "azEnvironment": facts.az_environment,
        "evictionPolicy": facts.eviction_policy,
        "location": facts.location,
        "name": vm.name,
        "offer": facts.offer,
        "osProfile": {"computerName": facts.computer_name or vm.name},
        "osType": facts.os_type,
        "placementGroupId": scope.name if in_scale_set else "",
        "platformFaultDomain": str(vm.fault_domain),
        "platformUpdateDomain": str(vm.update_domain),
        "priority": "Spot" if vm.spot else "Regular",
        "resourceGroupName": facts.resource_group,
        "resourceId": _resource_id(vm, scale_set),
        "sku": facts.sku,
        "storageProfile": {
            "imageReference": {"offer": facts.offer, "sku": facts.sku},
            "osDisk": {"osType": facts.os_type},
        },
        "subscriptionId": facts.subscription,
        "tags": ";".join(f"{name}:{value}" for name, value in facts.tags.items()),
        "tagsList": [{"name": name, "value": value} for name, value in facts.tags.items()],
        "vmId": vm.vm_id,
        "vmScaleSetName": scale_set,
        "vmSize": facts.size,
        "zone": facts.zone,
    }


def _resource_id(vm: Vm, scale_set: str) -> str:
    facts = vm.facts
    if not (facts.subscription and facts.resource_group):
        # Half an id would be taken for a whole one.
        return ""
    group = f"/subscriptions/{facts.subscription}/resourceGroups/{facts.resource_group}/providers/Microsoft.Compute"
    if scale_set:
        instance = vm.name.removeprefix(f"{scale_set}_")
        return f"{group}/virtualMachineScaleSets/{scale_set}/virtualMachines/{instance}"
    return f"{group}/virtualMachines/{vm.name}"


def _interface(addresses: Sequence[str]) -> Mapping[str, Node]:
    ipv4: list[Node] = [
        {"privateIpAddress": address, "publicIpAddress": ""} for address in addresses if ":" not in address
    ]
    ipv6: list[Node] = [{"privateIpAddress": address} for address in addresses if ":" in address]
    return {"ipv4": {"ipAddress": ipv4, "subnet": []}, "ipv6": {"ipAddress": ipv6}, "macAddress": ""}
