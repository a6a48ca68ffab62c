"""Who may send requests: API keys, and the tenants they belong to."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimonets._config import Config, integer
from mimonets._messages import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Tenant(Config):
    """Someone whose inputs never share a pass with others', unless both sides agreed."""

    name: str
    shares: bool = False  # its inputs may share a pass with those of others who agreed
    quota: int | None = integer(None)  # most inputs that it may have queued
    admin: bool = False  # may load and reload models

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        return super().problems() + ([] if self.name else ["a tenant needs a name."])


EVERYONE = Tenant(name="everyone", shares=True)


class Tenants:
    """The API keys of a server. Without any, everyone is the same tenant."""

    def __init__(self, api_keys: Mapping[str, Tenant] | None = None) -> None:
        # By digest: a lookup then takes the same time however much of a key was guessed.
        self._by_digest = {_digest(key): tenant for key, tenant in (api_keys or {}).items()}

    @property
    def is_open(self) -> bool:
        """Tell whether no API key is needed."""
        return not self._by_digest

    @property
    def quotas(self) -> dict[str, int]:
        """Quota of every tenant that has one."""
        found = self._by_digest.values()
        return {tenant.name: tenant.quota for tenant in found if tenant.quota is not None}

    @property
    def share(self) -> float:
        """Fraction of the server that one tenant may take; half of it if there are others."""
        names = {tenant.name for tenant in self._by_digest.values()}
        return 0.5 if len(names) > 1 else 1.0

    def find(self, key: str | None) -> Tenant | None:
        """Find the tenant of an API key; None if it is unknown."""
        if self.is_open:
            return EVERYONE
        return None if key is None else self._by_digest.get(_digest(key))


def read_api_keys(path: str | Path) -> Tenants:
    """Read ``{"KEY": {"tenant": "a", "shares": false, "quota": 100, "admin": false}}``."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict) or not content:
        raise ValueError(f'{path} holds no keys: write {{"KEY": {{"tenant": "a"}}}}.')
    return Tenants({key: _tenant(path, key, settings) for key, settings in content.items()})


def _tenant(path: Path, key: str, settings: Any) -> Tenant:
    known = ("tenant", "shares", "quota", "admin")
    if len(key) < 16:
        raise ValueError(f"{path}: a key has {len(key)} characters: use at least 16.")
    if not isinstance(settings, dict) or "tenant" not in settings:
        raise ValueError(f'{path}: every key needs a tenant, as in {{"tenant": "a"}}.')
    for name in settings:
        if name not in known:
            raise ValueError(f"{path}: unknown setting {name!r}{did_you_mean(name, known)}.")
    rest = {name: value for name, value in settings.items() if name != "tenant"}
    return Tenant(name=settings["tenant"], **rest)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
