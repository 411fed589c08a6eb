"""A request as the record of its run stores it, from which `orch resume` plans the next attempt. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, get_origin, get_type_hints

from orch_node.protocol import values
from orch_node.protocol.values import ProtocolError
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from orchestrator.errors import first_problem
from orchestrator.model.hosts import Nodes, parse_nodes
from orchestrator.model.printable import masked
from orchestrator.planning.request import TargetOptions, TrainRequest, changed_fields

SOURCE = "the recorded request"
OPTIONS = "options"
WITH_SECRETS = ("env", "settings", "script_args", "packages")  # fields whose secrets are not recorded
NOT_RECORDED = (OPTIONS, "runs_dir", "defaults")

KindOf = Callable[[str | None], type[TargetOptions] | None]  # the class of the options of the target that --on names


def render(request: TrainRequest) -> dict[str, Any]:
    """Return the options that differ from their defaults, for JSON; secrets are masked."""
    masked_values: dict[str, Any] = {name: masked(getattr(request, name)) for name in WITH_SECRETS}
    request = replace(request, **masked_values)
    recorded = {name: getattr(request, name) for name in changed_fields(request) if name not in NOT_RECORDED}
    for options in request.options:
        if options.on == request.on:
            recorded[OPTIONS] = {name: getattr(options, name) for name in changed_fields(options)}
    return dict(to_jsonable_python(recorded, fallback=str))


def parse(recorded: object, kind_of: KindOf, source: str = SOURCE) -> TrainRequest:
    """Return the request that `render` has rendered.

    Args:
        recorded: the JSON object.
        kind_of: returns the class of the options of a target.
        source: where the object is from, for messages.

    Raises:
        ProtocolError: if it is not a request that this version of orch knows.
    """
    fields = dict(values.check(recorded, source, dict))
    target_values = fields.pop(OPTIONS, None)
    arguments = arguments_of(TrainRequest, fields, source)
    if target_values is not None:
        kind = kind_of(arguments.get("on"))
        if kind is None:
            raise ProtocolError(f"{source}: {OPTIONS} are for a target, and the run has none.")
        part = f"{source}: {OPTIONS}"
        arguments[OPTIONS] = (kind(**arguments_of(kind, values.check(target_values, part, dict), part)),)
    if "recipe" not in arguments:
        raise ProtocolError(f"{source} has no 'recipe'.")
    return TrainRequest(**arguments)


def arguments_of(kind: type[Any], recorded: Mapping[str, object], source: str) -> dict[str, Any]:
    """Return the values of a dataclass' fields.

    Raises:
        ProtocolError: if a field is unknown or its value is of another type.
    """
    kinds = {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}
    for name in recorded:
        if name not in kinds:
            raise ProtocolError(f"{source} has the unknown key {name!r:.60}.")
    return {name: value_of(kinds[name], value, f"{source}: {name}") for name, value in recorded.items()}


def value_of(kind: Any, value: object, source: str) -> Any:
    """Return the value of an option.

    Raises:
        ProtocolError: if it is of another type than the option.
    """
    try:
        parsed = TypeAdapter(kind).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        raise ProtocolError(f"{source} is {value!r:.60}: {first_problem(error)[1]}.") from None
    return parse_nodes(parsed) if kind == Nodes | None and isinstance(parsed, str) else parsed
