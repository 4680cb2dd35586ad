"""Configuration files: YAML, checked as a whole, every error with its field path, unknown keys refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from dynamig.errors import Refused


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class Settings(BaseModel):
    """Base of every section: camelCase in the file, frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)


S = TypeVar("S", bound=Settings)


def load(path: Path, kind: type[S], reference: str) -> S:
    """The settings in `path`; `reference`: where the keys are described. Raises Refused BAD_CONFIG with every error."""
    try:
        body = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("BAD_CONFIG", f"{path}: {error}", "give another file with --config") from error
    except yaml.YAMLError as error:
        raise Refused("BAD_CONFIG", f"{path} is not YAML: {error}", reference) from error
    try:
        return kind.model_validate(body if body is not None else {})
    except ValidationError as error:
        listed = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise Refused("BAD_CONFIG", f"{path}: {listed}", reference) from error
