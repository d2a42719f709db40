"""Creates an object by put-if-absent, and settles an outcome that is unknown.

| the put ends as | meaning | then |
|---|---|---|
| created | ours | done |
| taken | another's, or our own: a store may repeat a put whose first answer was lost | read it, compare |
| denied | refused: not written | the same; the credentials may be renewed in between |
| unavailable | unknown | read it, compare; absent: put the same bytes again, which is safe |
"""

from collections.abc import Callable

from compactor.model.clock import Clock
from compactor.model.errors import Denied, Outdated, Unavailable
from compactor.model.retries import Backoff
from compactor.storage.object_store import ObjectStore

ATTEMPTS_MAX = 5
"""Attempts to settle one put whose answer was lost. After them (3 seconds at most) the outcome is unknown."""

SETTLING = Backoff(first_seconds=0.16, longest_seconds=1.0, jitter=1.0)
"""Pauses before the outcome of a put is looked up again: a service that did not answer needs time."""


def create_once(store: ObjectStore, key: str, body: bytes, is_ours: Callable[[bytes], bool], clock: Clock) -> bool:
    """Whether this call created the object; False: it is another writer's, and nothing was written.

    Raises `Unavailable` if the outcome is unknown: the object may exist, or appear later; `Denied` if each try was
    refused, and nothing was written.

    Args:
        is_ours: compares an existing object with `body`; it may raise `Outdated` for the object of a newer release"""
    failure: Unavailable | None = None
    may_exist = False
    for tries in range(1, ATTEMPTS_MAX + 1):
        try:
            if store.put_if_absent(key, body):
                return True
        except Unavailable as error:
            failure = error
            may_exist = may_exist or not isinstance(error, Denied)
        try:
            existing = store.read(key)
            if existing is not None:
                return is_ours(existing)
        except Outdated:
            return False  # ours can be read
        except Unavailable as error:
            failure = error
        SETTLING.sleep(tries, clock)
    if isinstance(failure, Denied) and not may_exist:
        raise Denied(f"{key} was not written: {failure}") from failure
    raise Unavailable(f"it is not known whether {key} was written: {failure}") from failure
