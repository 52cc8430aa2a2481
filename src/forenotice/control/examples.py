"""One example of everything that is sent or answered, for the API's description."""

from collections.abc import Mapping
from typing import Any

Example = dict[str, Any]

_NOW, _SOON, _LATER = "2026-03-01T12:00:00Z", "2026-03-01T12:15:00Z", "2026-03-01T12:30:00Z"
_EVENT = "602D9444-D2CD-49C7-8624-8643E7171297"
_OPERATION = "0b6f1c6e-6f0e-4a53-9d0e-6a1f6b9a2a11"
_ROLLOUT = "5f3c9f0a-2a55-4b0e-8a53-0c7d0e2f6b7a"
_ID = "8a506c35-679a-4f78-9d76-1f2e3d4c5b6a"

_POLICY: Example = {
    "listening": "auto",
    "auto_approve_restart": False,
    "auto_approve_redeploy": False,
    "terminate_notice_minutes": 5,
    "max_user_operations": None,
    "max_unavailable": "25%",
    "min_available": None,
    "windows": ["mon-fri 22:00-04:00 Europe/Berlin"],
}
_FACTS: Example = {
    "location": "west",
    "resource_group": "shop",
    "subscription": _ID,
    "size": "large",
    "os_type": "Linux",
    "zone": "1",
    "eviction_policy": "",
    "az_environment": "",
    "offer": "debian-12",
    "sku": "12-gen2",
    "computer_name": "",
    "tags": {"team": "shop"},
}
_HEARD: Example = {"incarnation": 7, "listening": True, "last_heard": _NOW}
_EVENT_VIEW: Example = {
    "id": _EVENT,
    "operation": _OPERATION,
    "kind": "restart",
    "host": "rack1-01",
    "scope": "group:web",
    "group": "web",
    "resources": ["web-0"],
    "type": "Reboot",
    "source": "User",
    "description": "Virtual machine is going to be restarted as requested by authorized user.",
    "duration_seconds": -1,
    "status": "Scheduled",
    "created_at": _NOW,
    "not_before": _SOON,
    "approved_at": None,
    "approved_by": None,
    "implied": False,
    "ended_at": None,
}
_OPERATION_VIEW: Example = {
    "id": _OPERATION,
    "kind": "restart",
    "host": "rack1-01",
    "vms": ["web-0"],
    "status": "Scheduled",
    "created_at": _NOW,
    "not_before": _SOON,
    "announce_at": None,
    "started_at": None,
    "ended_at": None,
    "by": "operator:admin",
    "reason": "new kernel",
    "rollout": None,
    "targets": {},
    "attempt": 0,
    "failures": {},
    "events": [_EVENT_VIEW],
}
_WAITS = "It waits for approval by web (web-0), until 2026-03-01 12:15:00 UTC at the latest."
_EXPLANATION: Example = {
    "sentence": _WAITS,
    "sentences": [_WAITS],
    "since": _NOW,
    "until": _SOON,
    "waiting_for": [
        {"kind": "approval", "scope": "group:web", "event": _EVENT, "resources": ["web-0"], "until": _SOON}
    ],
}
_ROLLOUT_OPTIONS: Example = {
    "kind": "update",
    "hosts": "rack1-*,!rack1-07",
    "notice_minutes": 20,
    "batch": 2,
    "pause_minutes": 10,
    "gate": "https://shop.example.com/healthy",
    "max_failures": 1,
    "windows": ["daily 02:00-04:00 UTC"],
}
_SUBSCRIPTION: Example = {
    "id": _ID,
    "name": "pager",
    "url": "https://hooks.example.com/forenotice",
    "types": ["forenotice.event.*"],
    "groups": "web-*",
    "statuses": ["Started"],
    "status": "active",
    "why": "",
    "position": 1234,
    "pending": 0,
    "created_at": _NOW,
    "by": "operator:admin",
}
_TOKEN: Example = {
    "id": _ID,
    "name": "shop",
    "role": "tenant",
    "scopes": "web-*,vm:db",
    "networks": ["10.0.0.0/8"],
    "expires_at": _LATER,
    "previous_until": None,
    "created_at": _NOW,
    "last_used_at": None,
    "revoked_at": None,
}

FLEET: Example = {
    "hosts": {"rack1-01": {"cordoned": False, "labels": {"rack": "r1"}, "capacity": 64}},
    "groups": {"web": {"kind": "availability-set"}},
    "vms": {"web-0": {"host": "rack1-01", "group": "web", "size": 4}},
}
FLEET_AS_TOML = """\
[hosts.rack1-01]
cordoned = false
labels = { rack = "r1" }
capacity = 64

[groups.web]
kind = "availability-set"

[vms.web-0]
host = "rack1-01"
group = "web"
size = 4
"""

ASKED: Mapping[str, Example] = {
    "NewHost": {"name": "rack1-01", "cordoned": False, "labels": {"rack": "r1"}, "capacity": 64},
    "HostChange": {"cordoned": True, "labels": {"rack": "r2", "spare": None}, "capacity": 96},
    "PolicyChange": _POLICY,
    "NewGroup": {"name": "web", "kind": "availability-set", "policy": _POLICY},
    "GroupChange": {"policy": {"max_unavailable": 2}},
    "NewVm": {
        "name": "web-0",
        "host": "rack1-01",
        "group": "web",
        "addresses": ["10.0.0.4"],
        "facts": _FACTS,
        "size": 4,
    },
    "VmChange": {"host": "rack1-02", "size": 8, "facts": {"tags": {"team": "shop"}}},
    "NewOperation": {"kind": "restart", "names": ["web-0"], "notice_minutes": 20, "reason": "new kernel"},
    "NewRollout": {**_ROLLOUT_OPTIONS, "reason": "firmware"},
    "Because": {"reason": "the shop is busy"},
    "Resumption": {"reason": "the disk is swapped", "retry": True},
    "DriverResult": {"attempt": 1, "done": ["web-0"], "failures": {"db": "no such machine"}},
    "NewSubscription": {
        "name": "pager",
        "url": "https://hooks.example.com/forenotice",
        "types": ["forenotice.event.*"],
    },
    "SubscriptionChange": {"groups": "web-*", "statuses": ["Started"]},
    "Replay": {"after": 1200},
    "NewToken": {
        "name": "shop",
        "role": "tenant",
        "scopes": "web-*,vm:db",
        "expires_in": "90d",
        "networks": ["10.0.0.0/8"],
    },
    "TokenRotation": {"overlap": "1h", "expires_in": "90d"},
    "Prune": {"before": "2026-01-01T00:00:00Z", "dry_run": True},
}
"""Bodies of requests, by model."""

_LISTED_ROLLOUT = {
    **_ROLLOUT_OPTIONS,
    "id": _ROLLOUT,
    "status": "Running",
    "why": "",
    "wave": 1,
    "waves": 2,
    "wave_began_at": _NOW,
    "failures": 0,
    "progress": {"waiting": 20, "under_way": 2, "done": 7, "failed": 0, "skipped": 1},
    "gate_result": {"green": True, "status": "200", "output": "all shards in sync", "at": _NOW},
    "created_at": _NOW,
    "ended_at": None,
    "by": "operator:admin",
    "reason": "firmware",
}

_VM: Example = {
    "name": "web-0",
    "vm_id": _ID,
    "host": "rack1-01",
    "group": "web",
    "scope": "group:web",
    "update_domain": 0,
    "fault_domain": 0,
    "spot": False,
    "addresses": ["10.0.0.4"],
    "facts": _FACTS,
    "size": 4,
    "policy": None,
    **_HEARD,
}
_MOVED: Example = {"noun": "vm", "name": "web-0", "fields": {"host": {"from": "rack2-01", "to": "rack1-01"}}}
_GROUP: Example = {"name": "web", "kind": "availability-set", "policy": _POLICY, "vms": 8, **_HEARD}

ANSWERED: Mapping[str, Example] = {
    "Error": {"error": {"code": "not_found", "message": "there is no VM 'web-9'", "facts": {"vm": "web-9"}}},
    "Removed": {"removed": "web-0"},
    "Host": {
        "name": "rack1-01",
        "cordoned": False,
        "labels": {"rack": "r1"},
        "capacity": 64,
        "address": "qemu+ssh://rack1-01/system",
        "used": 40,
        "vms": 12,
    },
    "Policy": _POLICY,
    "Vm": _VM,
    "AddedVm": {**_VM, "warnings": []},
    "Group": _GROUP,
    "AddedGroup": {**_GROUP, "warnings": []},
    "Event": _EVENT_VIEW,
    "Operation": _OPERATION_VIEW,
    "Operations": {"operations": [_OPERATION_VIEW]},
    "EventExplanation": {"event": _EVENT, **_EXPLANATION},
    "OperationExplanation": {"operation": _OPERATION, **_EXPLANATION},
    "RolloutExplanation": {"rollout": _ROLLOUT, **_EXPLANATION},
    "ListedRollout": _LISTED_ROLLOUT,
    "Rollout": {
        **_LISTED_ROLLOUT,
        "by_wave": [
            {
                "wave": 1,
                "update_domains": [0],
                "progress": {"waiting": 5, "under_way": 2, "done": 7, "failed": 0, "skipped": 1},
            },
            {
                "wave": 2,
                "update_domains": [1],
                "progress": {"waiting": 15, "under_way": 0, "done": 0, "failed": 0, "skipped": 0},
            },
        ],
    },
    "RolloutHost": {
        "host": "rack1-01",
        "wave": 1,
        "update_domains": [0],
        "status": "Under way",
        "operation": _OPERATION,
        "why": "",
    },
    "RolloutPlan": {
        **_ROLLOUT_OPTIONS,
        "begins_at": _NOW,
        "ends_at": _LATER,
        "waves": [
            {
                "wave": 1,
                "update_domains": [0],
                "hosts": 1,
                "vms": 1,
                "begins_at": _NOW,
                "first_start_at": _SOON,
                "ends_at": _LATER,
            },
        ],
        "stops": [
            {
                "host": "rack1-01",
                "wave": 1,
                "update_domains": [0],
                "vms": ["web-0"],
                "announced_at": _NOW,
                "not_before": _SOON,
                "ends_at": _LATER,
            }
        ],
        "groups": [
            {
                "scope": "group:web",
                "group": "web",
                "members": 8,
                "out_seconds": 9,
                "most_out": 1,
                "allowed": 2,
                "budget": "max_unavailable 25%",
                "delayed_hosts": 0,
            }
        ],
        "empty": [],
        "assumes": "Assumed: nobody approves early, every gate is green, and nothing fails.",
    },
    "Entry": {
        "seq": 1234,
        "at": _NOW,
        "action": "event.approved",
        "by": "operator:admin",
        "origin": "10.0.0.99",
        "reason": "",
        "scope": "group:web",
        "event": _EVENT,
        "operation": _OPERATION,
        "host": None,
        "vm": None,
        "rollout": None,
        "data": {},
    },
    "Pruned": {
        "before": "2026-01-01T00:00:00Z",
        "entries": 5000,
        "operations": 300,
        "events": 320,
        "rollouts": 1,
        "kept": 12,
        "complete": True,
        "dry_run": True,
    },
    "Token": _TOKEN,
    "NewToken": {**_TOKEN, "token": "fn_..."},
    "Subscription": _SUBSCRIPTION,
    "NewSubscription": {**_SUBSCRIPTION, "secret": "..."},
    "Delivery": {
        "position": 1235,
        "action": "event.started",
        "lane": _EVENT,
        "attempts": 2,
        "tried_since": _NOW,
        "due_at": _SOON,
        "error": "the receiver answered 503",
    },
    "Tried": {"taken": True, "status": 204, "error": ""},
    "Applied": {
        "changes": [{"action": "add", "noun": "host", "name": "rack1-01", "fields": {}}],
        "kept": [_MOVED | {"action": "keep"}],
        "applied": True,
        "warnings": [],
    },
    "Compared": {"differences": [_MOVED | {"action": "change"}]},
    "Fleet": FLEET,
}
"""Answers, by model."""
