"""Merges the user's template into a rendered pod, in the way of a strategic merge patch."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

#: Two items of these lists are the same item if they agree in these fields.
_MERGE_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
    "tolerations": ("key", "effect"),
    "topologySpreadConstraints": ("topologyKey",),
}
#: In these lists an item of the template replaces the rendered item as a whole, because the item holds one of several
#: alternatives: the source of a volume, the value of a variable or the source of the value.
_REPLACED_WHOLE = frozenset({"volumes", "env"})


def overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the overlay on top: mappings merge, lists with merge keys merge by them, other values are replaced."""
    result = dict(base)
    for key, value in overlay.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = overlaid(result[key], value)
        elif isinstance(value, list) and isinstance(result.get(key), list) and key in _MERGE_KEYS:
            result[key] = overlaid_list(result[key], value, key)
        else:
            result[key] = value
    return result


def overlaid_list(base: Sequence[Any], overlay: Sequence[Any], field: str) -> list[Any]:
    """Items of the base, each merged with the overlay's first item of the same key, followed by all other items.

    If an item of the overlay is not an object with such a key, the overlay is returned unchanged: the API server then
    refuses the pod with a message.
    """
    keys = _MERGE_KEYS[field]
    if not all(
        isinstance(item, Mapping) and all(isinstance(item.get(key), str | int | None) for key in keys)
        for item in overlay
    ):
        return list(overlay)
    left = list(overlay)
    result = []
    for item in base:
        over = next((candidate for candidate in left if _key(candidate, keys) == _key(item, keys)), None)
        if over is not None:
            left.remove(over)
        result.append(item if over is None else _merged(item, over, field))
    return [*result, *left]


def _key(item: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    values = (item.get(key) for key in keys)
    return tuple(posixpath.normpath(value) if isinstance(value, str) else value for value in values)


def _merged(item: Mapping[str, Any], over: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    is_other_volume = field == "volumeMounts" and over.get("name", item["name"]) != item["name"]
    if field in _REPLACED_WHOLE or is_other_volume:
        return over
    if field == "topologySpreadConstraints":  # two selectors together would select other pods than either of them
        return {**item, **over}
    return overlaid(item, over)
