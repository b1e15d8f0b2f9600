"""The HTTP APIs as OpenAPI, read from the code: the monitor's routes, parameters and the keys of its answers, and the gateway's routes.

An answer's schema comes from the dictionaries that its function returns, read as source: where a value's type does not show there, any is
allowed. No application is started.
"""

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from manta_swarm.aggregator.monitor.app import MonitorApp
from manta_swarm.aggregator.monitor.quality import PicturesIndex
from manta_swarm.protocol import light
from tests.documents import ROOT

_NOTHING: Any = SimpleNamespace(view=SimpleNamespace())
_ERRORS = {400: "Bad parameter", 404: "Nothing of that name", 409: "A peer's name that fits several", 503: "Not readable now"}
_OF_GATEWAY = {
    "_welcome": ("The run's manifest and what a lease needs", 200),
    "_enter": ("Ask to be admitted", 200),
    "_lease": ("Lease microbatches", 200),
    "_blob": ("Fetch a blob that a lease names", 200),
    "_take": ("Bring back what a lease's microbatches gave", 200),
    "_word": ("Ask what became of a return", 200),
    "_pay": ("Ask what a contribution was paid", 200),
}
_DEEPEST = 6  # functions and names that are followed
_LOG = "Files of the log, as C2SP's tlog-tiles has them"
Schema = dict[str, Any]


def monitor_routes() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield each path of the JSON API with the function that answers, and the parameters that it knows."""
    from manta_swarm.aggregator.monitor.answers import Answers

    app = MonitorApp(_NOTHING, _NOTHING, Answers(_NOTHING, _NOTHING, _NOTHING), _NOTHING, {}, None)
    for route in app._api_routes(Answers(_NOTHING, _NOTHING, _NOTHING)):
        of = dict(zip(route.endpoint.__code__.co_freevars, (cell.cell_contents for cell in route.endpoint.__closure__), strict=True))
        yield route.path, of["answer"], of["known"]


@functools.cache
def _source(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    return found


def _value(node: ast.AST, function: Any) -> Any:
    """Return what an expression of constants is, None where it has others."""
    try:
        return eval(compile(ast.Expression(node), "", "eval"), vars(sys.modules[function.__module__]).copy())  # type: ignore[arg-type]
    except (NameError, AttributeError, TypeError):
        return None


def parameter(name: str, function: Any) -> Schema:
    """Return a parameter in the query, with its bounds where the function names them."""
    schema: Schema = {}
    for node in ast.walk(_source(function)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "asked"):
            continue
        given = [_value(argument, function) for argument in node.args]
        if not given or given[0] != name:
            continue
        if node.func.attr in ("number", "optional"):
            schema = {"type": "integer", **_known(zip(("minimum", "maximum", "default"), given[1:], strict=False))}
        elif node.func.attr == "choice":
            schema = {"type": "string", **_known((("enum", list(given[1]) if given[1] else None), ("default", given[2] or None)))}
        else:
            schema = {"type": "string", "maxLength": 128}
    return {"name": name, "in": "query", "required": False, "schema": schema or {"type": "integer", "minimum": 0}}


def _known(pairs: Any) -> Schema:
    return {name: value for name, value in pairs if value is not None}


def answer(function: Any, deep: int = 0) -> Schema:
    """Return the schema of what a function returns."""
    found: Schema = {}
    if function.__name__ == "pictures":
        return PicturesIndex.model_json_schema(ref_template="#/components/schemas/{model}")
    returned = [node.value for node in ast.walk(_source(function)) if isinstance(node, ast.Return) and node.value is not None]
    for node in returned:
        for key, value in _schema(node, function, deep).items():
            found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value
    if isinstance(found.get("type"), str) and any(_may_be_nothing(node) for node in returned):
        found["type"] = [found["type"], "null"]
    return found


def _may_be_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.IfExp):
        return _may_be_nothing(node.body) or _may_be_nothing(node.orelse)
    return isinstance(node, ast.Constant) and node.value is None


def _schema(node: ast.AST, function: Any, deep: int) -> Schema:
    match node:
        case ast.Dict():
            return _object(node, function, deep)
        case ast.List() | ast.ListComp():
            parts = [node.elt] if isinstance(node, ast.ListComp) else node.elts[:1]
            return {"type": "array", **({"items": _schema(parts[0], function, deep)} if parts else {})}
        case ast.IfExp():
            parts = [one for one in (node.body, node.orelse) if not (isinstance(one, ast.Constant) and one.value is None)]
            schema = _schema(parts[0], function, deep)
            return {**schema, "type": [schema["type"], "null"]} if len(parts) == 1 and isinstance(schema.get("type"), str) else schema
        case ast.Name(id=name):
            values = [
                one.value for one in ast.walk(_source(function)) if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == name
            ]
            return _schema(values[0], function, deep + 1) if len(values) == 1 and deep <= _DEEPEST else {}
        case ast.Constant(value=bool()) | ast.Compare():
            return {"type": "boolean"}
        case ast.Constant(value=str()):
            return {"type": "string"}
        case ast.Call(func=ast.Name(id="len")):
            return {"type": "integer"}
        case ast.Call(func=ast.Name(id="list"), args=[ast.Call(func=ast.Name(id="map"), args=[called, *_])]):
            return {"type": "array", "items": _called(called, function, deep)}
        case ast.Call(func=ast.Attribute(attr="hex")) | ast.Call(func=ast.Name(id="peer_name")):
            return {"type": "string"}
        case ast.Call(func=called):
            return _called(called, function, deep)
    return {}


def _called(node: ast.AST, function: Any, deep: int) -> Schema:
    """Return what another function that makes parts of answers returns."""
    name = ast.unparse(node)
    others = vars(sys.modules[function.__module__])
    owner = others.get(function.__qualname__.partition(".")[0])
    found = others.get(name) or getattr(owner, name.removeprefix("self."), None)
    if name == "self._present.now" or name == "self._present.traffic":
        from manta_swarm.aggregator.monitor.present import Present

        found = getattr(Present, name.rpartition(".")[2])
    if deep > _DEEPEST or not inspect.isfunction(found) or not re.search(r"shown|_open|_quality|_traffic|now|traffic|_paid_up_to", name):
        return {}
    return answer(found, deep + 1)


def _object(node: ast.Dict, function: Any, deep: int) -> Schema:
    properties: Schema = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            properties[key.value] = _schema(value, function, deep)
        elif key is None:
            properties.update(_schema(value, function, deep).get("properties", {}))
    return {"type": "object", "properties": properties}


def _answers(kind: str, schema: Schema, errors: dict[int, str]) -> Schema:
    told = {str(status): {"description": why} for status, why in errors.items()}
    return {"200": {"description": "The answer", "content": {kind: {"schema": schema}}}, **told}


def gateway_routes() -> Iterator[tuple[str, str, str]]:
    """Yield the paths of a gateway, each with its method and the name of the function that answers."""
    names = {**vars(light), "PAY": f"{light.PREFIX}/pay"}
    for node in ast.walk(ast.parse((ROOT / "peer/features/gateway/http.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Route":
            path = eval(compile(ast.Expression(node.args[0]), "", "eval"), names.copy())
            (method,) = ast.literal_eval(node.keywords[0].value)
            called = node.args[1]
            assert isinstance(called, ast.Call)
            yield path, method.lower(), ast.unparse(called.args[0]).removeprefix("self.")


def _in_path(path: str) -> list[Schema]:
    names = re.findall(r"{(\w+)", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def openapi() -> Schema:
    """Return the whole file."""
    paths: Schema = {}
    for path, function, known in monitor_routes():
        parameters = [*_in_path(path), *(parameter(name, function) for name in known)]
        operation = {"tags": ["monitor"], "parameters": parameters}
        paths[path] = {"get": {**operation, "responses": _answers("application/json", answer(function), _ERRORS)}}
    for path, kind, says in (
        ("/api/events", "text/event-stream", "Server-sent events"),
        ("/metrics", "text/plain", "Metrics for Prometheus"),
        ("/api/pictures/{name}.png", "image/png", "A picture of /api/pictures"),
        ("/tlog/{name}", "application/octet-stream", _LOG),
    ):
        operation = {"tags": ["monitor"], "summary": says, "parameters": _in_path(path)}
        paths[path] = {"get": {**operation, "responses": _answers(kind, {"type": "string"}, {503: _ERRORS[503]})}}
    for path, method, name in gateway_routes():
        errors = {400: "Malformed", 403: "Not admitted", 404: "Not known here", 429: "Too many requests", 503: "Come back later"}
        operation = {"tags": ["gateway"], "summary": _OF_GATEWAY[name][0], "parameters": _in_path(path)}
        record = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        body = {"requestBody": {"required": True, "content": record}} if method == "post" else {}
        responses = _answers("application/octet-stream", {"type": "string", "format": "binary"}, errors)
        paths.setdefault(path, {})[method] = {**operation, **body, "responses": responses}
    parts = paths["/api/pictures"]["get"]["responses"]["200"]["content"]["application/json"]["schema"].pop("$defs")
    return {
        "openapi": "3.1.0",
        "components": {"schemas": parts},
        "info": {"title": "Manta: monitor and gateway", "version": "0.1"},
        "paths": paths,
    }


def page() -> str:
    """Return the page about the APIs."""
    lines = [
        "# HTTP API",
        "",
        "[openapi.json](openapi.json) has routes, parameters and answers. The monitor answers GET and HEAD; an error is",
        '`{"error": {"status": 404, "reason": "..."}}`. A gateway (`/light`) sends and takes [packed records](../protocol.md).',
        "",
    ]
    for path, operations in openapi()["paths"].items():
        for method, one in operations.items():
            asked = ",".join(each["name"] for each in one["parameters"] if each["in"] == "query")
            lines.append(f"- `{method.upper()} {path}{'?' + asked if asked else ''}`")
    return "\n".join(lines)
