"""The bridge's configuration file (docs/reference/bridge-config.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from dynamig import settings
from dynamig.bridge.accounts import Accounts, Terms
from dynamig.bridge.http import address
from dynamig.protocol import names
from dynamig.settings import AbsolutePath, Settings

Text = Annotated[str, Field(min_length=1)]
Payer = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
"""`namespace`, or `namespace/service account`, as Kubernetes names them."""


def _distinct(given: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in given if given.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} is given twice")
    return given


class SlurmConfig(Settings):
    """slurmrestd, and who the bridge is there: SlurmUser, root or an operator (admin_comment and user need it)."""

    url: str = Field(description="http://host:port or unix:/path of slurmrestd")
    user: str
    token_file: AbsolutePath


class AccountConfig(Settings):
    """Who pays, and what pods may choose: `dynamig.bridge.accounts.Terms`."""

    user: Text
    account: str = ""
    partitions: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_distinct)]
    qos: Annotated[tuple[Text, ...], AfterValidator(_distinct)] = ()
    minutes: Annotated[int, Field(gt=0)] | None = None
    max_minutes: Annotated[int, Field(gt=0)] | None = None

    @field_validator("max_minutes")
    @classmethod
    def _covers_the_default(cls, most: int | None, info: ValidationInfo) -> int | None:
        minutes = info.data.get("minutes")
        if most is not None and minutes is not None and most < minutes:
            raise ValueError(f"{most} is less than minutes, which is {minutes}")
        return most

    def value(self) -> Terms:
        return Terms(self.user, self.account, self.partitions, self.qos, self.minutes, self.max_minutes)


def _address(text: str) -> str:
    address(text)
    return text


class BridgeConfig(Settings):
    slurm: SlurmConfig
    default_account: AccountConfig | None = Field(default=None, description="absent: only what `accounts` lists")
    accounts: dict[Payer, AccountConfig] = Field(
        default_factory=dict, description="by namespace, or namespace/service account"
    )
    kubeconfig: AbsolutePath | None = None
    driver_name: str = names.DRIVER_NAME
    namespace: str = names.NAMESPACE
    listen: Annotated[str, AfterValidator(_address)] | None = None

    def account_map(self) -> Accounts:
        entries = {payer: account.value() for payer, account in self.accounts.items()}
        return Accounts(entries, self.default_account.value() if self.default_account else None)


def load(path: Path) -> BridgeConfig:
    return settings.load(path, BridgeConfig, "docs/reference/bridge-config.md")
