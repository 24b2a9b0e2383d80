"""Which characters a vocabulary can spell."""

from __future__ import annotations

from ramet.runtime.grammar.regex import parse_regex
from ramet.runtime.grammar.regex.char_sets import ALL_CHARS, CharSet
from ramet.runtime.grammar.regex_automaton import RegexAutomaton
from ramet.runtime.grammar.spellable import spellable_chars

BYTES = [bytes([byte]) for byte in range(256)]


def without(missing: bytes) -> list[bytes]:
    return [piece for piece in BYTES if piece not in {bytes([byte]) for byte in missing}]


def test_all_bytes_spell_everything() -> None:
    assert spellable_chars([*BYTES, b"", b"ab"]) == ALL_CHARS


def test_missing_bytes() -> None:
    chars = spellable_chars(without(b"\x04\xf1\xf2"))
    missing = CharSet.of_ranges([(4, 4), (0x40000, 0xBFFFF)])
    assert chars == ALL_CHARS - missing


def test_longer_tokens_stand_in_for_a_missing_first_byte() -> None:
    chars = spellable_chars([*without(b"\xe6\xc3"), "日".encode()[:2], "é".encode(), b"ab"])
    assert "日" in chars
    assert "旦" in chars
    assert "本" not in chars
    assert "é" in chars
    assert "ê" not in chars


def test_without_trailing_bytes_only_whole_characters_count() -> None:
    assert spellable_chars([*without(b"\x80"), "é".encode()]) == CharSet.of_ranges([(0, 127), (0xE9, 0xE9)])


def test_a_regex_that_no_tokens_can_spell_has_no_ending() -> None:
    automaton = RegexAutomaton(parse_regex("[\x04\x06]{2}|a\x04"), spellable_chars(without(b"\x04\x06")))
    start = automaton.start()
    assert start is not None
    assert automaton.shortest_ending(start) is None
