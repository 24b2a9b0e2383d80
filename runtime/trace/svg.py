"""Just enough SVG to draw a timeline: a list of elements, with every text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """The text for an element or a quoted attribute; what XML 1.0 cannot hold becomes U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Svg:
    """Elements in drawing order. Lengths and positions are in pixels, y downwards. `css_class` gives the colours."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, css_class: str, title: str = "", radius: float = 0
    ) -> None:
        """A rectangle; `title` is shown when the pointer rests on it."""
        rounded = f' rx="{_number(radius)}"' if radius else ""
        start = (
            f'<rect class="{css_class}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}"{rounded}'
        )
        self._elements.append(f"{start}><title>{xml_text(title)}</title></rect>" if title else f"{start}/>")

    def path(self, data: str, css_class: str, title: str = "") -> None:
        start = f'<path class="{css_class}" d="{data}"'
        self._elements.append(f"{start}><title>{xml_text(title)}</title></path>" if title else f"{start}/>")

    def polyline(self, points: list[tuple[float, float]], css_class: str) -> None:
        moves = " L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self.path(f"M{moves}", css_class)

    def text(self, x: float, y: float, text: str, css_class: str, anchor: str = "start", title: str = "") -> None:
        """One line of text whose baseline is at y; anchor is start, middle or end."""
        inside = xml_text(text) + (f"<title>{xml_text(title)}</title>" if title else "")
        self._elements.append(
            f'<text class="{css_class}" x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{inside}</text>'
        )

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Elements that share a title."""
        self._elements.append(f"<g><title>{xml_text(title)}</title>")
        yield
        self._elements.append("</g>")

    def document(self, width: float, height: float, style: str, definitions: str, title: str) -> str:
        """The whole picture. `style` and `definitions` are trusted; the class `background` is its ground."""
        size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{xml_text(title)}">',
                f"<style>{style}</style>",
                f"<defs>{definitions}</defs>",
                '<rect class="background" width="100%" height="100%"/>',
                *self._elements,
                "</svg>\n",
            ]
        )
