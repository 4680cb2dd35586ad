"""The bridge's configuration file (docs/reference/bridge-config.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dynamig import settings
from dynamig.bridge.world import Account
from dynamig.protocol import names
from dynamig.settings import AbsolutePath, Settings


class SlurmConfig(Settings):
    """slurmrestd, and who the bridge is there: SlurmUser, root or an operator (admin_comment and user need it)."""

    url: str = Field(description="http://host:port or unix:/path of slurmrestd")
    user: str
    token_file: AbsolutePath


class AccountConfig(Settings):
    """Who pays for a namespace. `minutes`: time limit of a hold; absent: the partition's."""

    user: str
    account: str = ""
    partition: str = ""
    qos: str = ""
    minutes: Annotated[int, Field(gt=0)] | None = None

    def value(self) -> Account:
        return Account(self.user, self.account, self.partition, self.qos, self.minutes)


class BridgeConfig(Settings):
    slurm: SlurmConfig
    default_account: AccountConfig
    accounts: dict[str, AccountConfig] = Field(default_factory=dict, description="by namespace")
    nodes: dict[str, str] = Field(default_factory=dict, description="Kubernetes node to Slurm node, where they differ")
    kubeconfig: AbsolutePath | None = None
    driver_name: str = names.DRIVER_NAME
    namespace: str = names.NAMESPACE

    def account_of(self) -> Callable[[str], Account]:
        known = {namespace: account.value() for namespace, account in self.accounts.items()}
        default = self.default_account.value()
        return lambda namespace: known.get(namespace, default)


def load(path: Path) -> BridgeConfig:
    return settings.load(path, BridgeConfig, "docs/reference/bridge-config.md")
