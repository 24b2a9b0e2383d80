"""The regex front end: what Python's `re` means by a pattern, in a form every engine understands alike."""

from .parser import choices_regex, parse_regex
from .syntax import Regex

__all__ = ["Regex", "choices_regex", "parse_regex"]
