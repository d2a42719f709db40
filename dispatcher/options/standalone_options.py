"""The options of a standalone Spark, checked together: one `Invalid` has all violations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compactor.model.errors import Invalid
from compactor.storage.location import StoreLocation
from dispatcher.clients import StandaloneAddress
from launcher.clusters.standalone import violations


@dataclass(frozen=True)
class StandaloneOptions:
    """`cores`, `memory_gib`: of that Spark, for all sessions together."""

    master_url: str | None
    archive: Path | None
    executor_cores: int | None
    driver_host: str | None
    cores: int | None
    memory_gib: float | None

    def address(self, stores: Mapping[str, StoreLocation], *, is_aws: bool) -> StandaloneAddress | None:
        """None: sessions run elsewhere. `stores`: those that its workers must reach, by the option that names each.

        Raises `Invalid` with all violations.
        """
        if self.master_url is None:
            self._check_nothing_else()
            return None
        reasons = list(violations(self.master_url, stores))
        if is_aws:
            reasons.append("--master-url and --cluster-settings name two places for sessions: leave one out")
        if self.archive is None:
            reasons.append("--master-url needs --archive: make one with `lithify archive lithify.tar.gz`")
        elif not self.archive.is_file():
            reasons.append(f"there is no archive {self.archive}: make one with `lithify archive {self.archive}`")
        if self.cores is None or self.memory_gib is None:
            reasons.append("--master-url needs --cores and --memory-gib: what sessions may take of that Spark, in all")
        if reasons or self.archive is None:
            raise Invalid(*reasons)
        return StandaloneAddress(self.master_url, self.archive, self.executor_cores, self.driver_host)

    def _check_nothing_else(self) -> None:
        given = {"--archive": self.archive, "--executor-cores": self.executor_cores, "--driver-host": self.driver_host}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise Invalid(f"{', '.join(unused)} is about a standalone Spark: add --master-url spark://host:port")
