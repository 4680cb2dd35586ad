"""Configuration files: YAML, checked as a whole, every error with its field path, unknown keys refused."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from dynamig.errors import Refused


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
SLURM_NODE = r"^[^\s,\[\]]+$"
"""A name, not a list of names as Slurm writes them."""
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class _Yaml(yaml.SafeLoader):
    """YAML without two traps: a key given twice is an error, and 0000:07:00.0 is text, not a number to base 60 (YAML
    1.1). Numbers are as in YAML 1.2, apart from octal ones and exponents, which are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]
        if twice := [str(key) for key in keys if keys.count(key) > 1]:
            problem = f"key {twice[0]} is given twice"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


_Yaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith((":int", ":float"))]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+\.[0-9]*$"), list("-+0123456789"))


class Settings(BaseModel):
    """Base of every section: camelCase in the file, frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)


S = TypeVar("S", bound=Settings)


def load(path: Path, kind: type[S], reference: str) -> S:
    """The settings in `path`; `reference`: where the keys are described. Raises Refused BAD_CONFIG with every error."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("BAD_CONFIG", f"{path}: {error}", "give another file with --config") from error
    return parse(text, kind, str(path), reference)


def parse(text: str, kind: type[S], where: str, reference: str) -> S:
    """The settings in `text`, which stands in `where`. Raises Refused BAD_CONFIG with every error."""
    try:
        body = yaml.load(text, _Yaml)  # a SafeLoader
    except yaml.YAMLError as error:
        raise Refused("BAD_CONFIG", f"{where} is not YAML: {error}", reference) from error
    try:
        return kind.model_validate(body if body is not None else {})
    except ValidationError as error:
        listed = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise Refused("BAD_CONFIG", f"{where}: {listed}", reference) from error
