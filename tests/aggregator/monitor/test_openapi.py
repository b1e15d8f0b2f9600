"""docs/reference/openapi.json says of the monitor's answers what they are."""

import json
from typing import Any

import pytest

from tests.aggregator.monitor.asgi import Shown
from tests.docs.reference import FOLDER

PATHS = json.loads((FOLDER / "openapi.json").read_text(encoding="utf-8"))["paths"]
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
ASKED = {"/api/ledger/proof": "?index=0", "/api/ledger/consistency": "?old=1"}


def faults(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Return what of a value is not as its schema says; keys that the schema does not know may be there."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES[kind]) for kind in kinds):
        return [f"{where}: {value!r} is none of {kinds}"]
    found = []
    if isinstance(value, dict):
        for name, below in schema.get("properties", {}).items():
            found += faults(value[name], below, f"{where}.{name}") if name in value else [f"{where}: no {name}"]
    if isinstance(value, list) and "items" in schema:
        found += [fault for each in value for fault in faults(each, schema["items"], f"{where}[]")]
    return found


@pytest.mark.parametrize("path", [path for path in PATHS if path.startswith("/api/") and "{" not in path and path != "/api/events"])
def test_an_answer_has_the_keys_and_types_that_the_openapi_file_says(path: str, shown: Shown) -> None:
    got = shown.get(path + ASKED.get(path, ""))
    assert got.status == 200
    if path != "/api/pictures":  # that schema is the model's own
        assert not faults(got.json, PATHS[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"])
