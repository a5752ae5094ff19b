"""Limits on a YAML file, checked before anything is built from it.

A few lines of YAML can unfold to any size by aliases or interpolations, and deep nesting ends a process through its C
stack. The events of a file are read one by one and without recursion.
"""

from __future__ import annotations

import yaml

from molflt.errors import InputError

MOST_CHARACTERS = 1 << 18
"""A configuration with every key explained has some ten thousand."""
_MOST_NODES = 10_000
_MOST_DEPTH = 20
_MOST_INTERPOLATIONS = 16
"""Of ``${...}`` in the whole file: each may repeat what another makes."""
_MOST_INTERPOLATED = 1000
"""Characters of a value with interpolations; OmegaConf's grammar takes milliseconds for each."""


def check_plain_yaml(text: str, where: str) -> None:
    """Refuse YAML that is too large, once unfolded too, too deep, or that names types.

    Args:
        text: the content.
        where: file, for messages.

    Raises:
        InputError: a limit is exceeded, or there is a tag such as ``!!python/object``.
        yaml.YAMLError: not YAML.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{where}: too long for a configuration (more than {MOST_CHARACTERS:,} characters); "
            "'molflt config tiny' prints one"
        )
    open_sizes, open_anchors = [0], [""]
    sizes: dict[str, int] = {}
    interpolations = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise InputError(f"{where}: refused, it names a type ({tag!r:.60}); remove the tag")
        if isinstance(event, yaml.CollectionStartEvent):
            open_sizes.append(1)
            open_anchors.append(event.anchor or "")
            if len(open_sizes) > _MOST_DEPTH:
                raise InputError(f"{where}: refused, it is nested more than {_MOST_DEPTH} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = open_sizes.pop(), open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent):
            # one that is not known yet stands inside itself, or nowhere
            size, anchor = sizes.get(event.anchor or "", _MOST_NODES), ""
        elif isinstance(event, yaml.ScalarEvent):
            size, anchor = 1, event.anchor or ""
            found = event.value.count("${")
            interpolations += found
            if interpolations > _MOST_INTERPOLATIONS or (found and len(event.value) > _MOST_INTERPOLATED):
                raise InputError(f"{where}: refused, it has too many or too long interpolations (${{...}})")
        else:
            continue
        if anchor:
            sizes[anchor] = size
        open_sizes[-1] += size
        if open_sizes[-1] > _MOST_NODES:
            raise InputError(f"{where}: refused, it unfolds to more than {_MOST_NODES:,} values, or holds itself")
