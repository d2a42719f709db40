"""A permission is a value: actions, resources, conditions, and a reason. Roles and the table of the pages use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

JsonObject = dict[str, object]


@dataclass(frozen=True)
class Permission:
    """
    Attributes:
        sid: its name in the policy
        why: a phrase, for the table
        actions: `service:Action` each, never a wildcard
        resources: ARNs; `*` only where AWS knows nothing narrower, and `why` says so
        conditions: as IAM has them"""

    sid: str
    why: str
    actions: Sequence[str]
    resources: Sequence[str]
    conditions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def statement(self) -> JsonObject:
        found: JsonObject = {
            "Sid": self.sid,
            "Effect": "Allow",
            "Action": sorted(self.actions),
            "Resource": list(self.resources),
        }
        if self.conditions:
            found["Condition"] = {name: dict(each) for name, each in self.conditions.items()}
        return found


def actions(service: str, names: str) -> tuple[str, ...]:
    """The actions of a service. `names`: separated by spaces."""
    return tuple(f"{service}:{name}" for name in names.split())


def document(permissions: Sequence[Permission]) -> JsonObject:
    return {"Version": "2012-10-17", "Statement": [each.statement() for each in permissions]}


@dataclass(frozen=True)
class Part:
    """A role and its permissions.

    Attributes:
        name: of the part, for display: `Spark job`
        role: the role's logical id
        principals: the services that take the role; none: people and programs of the account that may assume it"""

    name: str
    role: str
    principals: tuple[str, ...]
    permissions: tuple[Permission, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    managed_policies: tuple[str, ...] = ()
