"""HTML and SVG elements, in which every text is escaped."""

from __future__ import annotations

from html import escape

_EMPTY = {"br", "circle", "line", "meta", "path", "polyline", "rect"}  # elements without an end tag


class Markup(str):
    """Text that is HTML already; :func:`element` leaves it as it is."""

    __slots__ = ()


def element(kind: str, /, *content: str, **attributes: object) -> Markup:
    """An element with its content and attributes, all escaped but :class:`Markup`.

    Underscores in attributes' names become hyphens, ``cls`` becomes ``class``; an attribute that is None is left out.
    """
    words = [f"<{kind}"]
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            words.append(f'{"class" if key == "cls" else key.replace("_", "-")}="{escape(text)}"')
    start = " ".join(words)
    if kind in _EMPTY:
        return Markup(f"{start}/>" if kind not in ("br", "meta") else f"{start}>")
    return Markup(f"{start}>{joined(content)}</{kind}>")


def joined(content: tuple[str, ...] | list[str]) -> Markup:
    """Texts, escaped, and markup, in their order."""
    return Markup("".join(one if isinstance(one, Markup) else escape(one) for one in content))
