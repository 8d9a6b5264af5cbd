"""Merges the user's template into a rendered pod, in the way of a strategic merge patch."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Two items of these lists are the same item if they agree in this key.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "tolerations": "key",
    "topologySpreadConstraints": "topologyKey",
}
#: In these lists an item of the template replaces the rendered item as a whole, because the item holds one of several
#: alternatives: the source of a volume, the value of a variable or the source of the value.
_REPLACED_WHOLE = frozenset({"volumes", "env"})


def overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the overlay on top: mappings merge, lists with a merge key merge by it, other values are replaced."""
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
    key = _MERGE_KEYS[field]
    if not all(isinstance(item, Mapping) and isinstance(item.get(key), str | int | None) for item in overlay):
        return list(overlay)
    left = list(overlay)
    result = []
    for item in base:
        over = next((candidate for candidate in left if candidate.get(key) == item.get(key)), None)
        if over is not None:
            left.remove(over)
        result.append(item if over is None else over if field in _REPLACED_WHOLE else overlaid(item, over))
    return [*result, *left]
