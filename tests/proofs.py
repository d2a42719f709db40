"""Proofs of keys in one partition of a table."""

from collections.abc import Sequence

from compactor.lake import DeltaCatalog
from compactor.maintenance.privacy import PrivacyProof, prove_partitions
from compactor.maintenance.searched_key import KeyValues
from compactor.model.clock import Clock
from compactor.model.names import PartitionValues


def prove_many(
    lake: DeltaCatalog, table_id: str, partition: PartitionValues, keys: Sequence[KeyValues], clock: Clock
) -> list[PrivacyProof]:
    """A proof for each key, in order."""
    return [proof for _, proof in prove_partitions(lake, table_id, [partition], lambda _: keys, clock)]
