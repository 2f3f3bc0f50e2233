"""Random changes of bytes and of text."""

from __future__ import annotations

import re

# What a careless or a hostile hand writes instead of a number.
WORDS = [
    b"", b" ", b"nan", b"inf", b"-Infinity", b"1e400", b"-1e39", b"1e-400", b"0x1p3", b"1_0", b"+.5", b"1.", b".", b"-",
    b"1,5", b"2;3", b"'1'", b'"', b'"2"', b'"3', b'4"', b'"a\nb"', b"#", b"1:2", b":", b"1:", b":1", b"0:1", b"-1:1",
    b"2147483648:1", b"99999999999999999999:1", b"1e3:1", b"qid:3", b"\xff", b"\x00", b"\xef\xbb\xbf", b"\r", b"\n\n",
    b"\xd9\xa3", b"9" * 400, b"True", b"None", b"1+2j", b"(1)", b"1\xc2\xa0", b"\x0c",
]  # fmt: skip


def flipped(content, rng):
    """One to four bits are others."""
    out = bytearray(content)
    for place in rng.integers(len(out), size=rng.integers(1, 5)):
        out[place] ^= 1 << rng.integers(8)
    return bytes(out)


def overwritten(content, rng):
    """A few bytes in a row are zeros, ones or anything."""
    place, size = rng.integers(len(content)), int(rng.integers(1, 9))
    filler = [bytes(size), b"\xff" * size, rng.bytes(size)][rng.integers(3)]
    return content[:place] + filler + content[place + size :]


def truncated(content, rng):
    """The end is missing."""
    return content[: rng.integers(len(content))]


def duplicated(content, rng):
    """A piece stands there twice."""
    a, b = sorted(rng.integers(len(content) + 1, size=2).tolist())
    return content[:b] + content[a:b] + content[b:]


def removed(content, rng):
    """A piece is missing."""
    a = int(rng.integers(len(content)))
    return content[:a] + content[a + int(rng.integers(1, 20)) :]


def inserted(content, rng):
    """A word too many."""
    place = rng.integers(len(content) + 1)
    return content[:place] + WORDS[rng.integers(len(WORDS))] + content[place:]


def swapped_lines(content, rng):
    """Two lines changed their places."""
    return _swapped(content.splitlines(keepends=True), rng)


def swapped_tokens(content, rng):
    """Two words or delimiters changed their places."""
    return _swapped(_tokens(content), rng)


def replaced_token(content, rng):
    """Another word stands instead of one."""
    tokens = _tokens(content)
    words = [i for i, token in enumerate(tokens) if token.strip(b" \t\r\n,")]
    if words:
        tokens[words[rng.integers(len(words))]] = WORDS[rng.integers(len(WORDS))]
    return b"".join(tokens)


def _tokens(content):
    return re.split(rb"([ \t\r\n,]+)", content)


def _swapped(pieces, rng):
    if pieces:
        a, b = rng.integers(len(pieces), size=2)
        pieces[a], pieces[b] = pieces[b], pieces[a]
    return b"".join(pieces)


OF_BYTES = (flipped, overwritten, truncated, duplicated, removed)
OF_TEXT = (*OF_BYTES, inserted, inserted, swapped_lines, swapped_tokens, replaced_token, replaced_token)


def mutated(content, rng, kinds=OF_BYTES):
    """One or two of these changes; what is left is never nothing."""
    for _ in range(1 + (rng.random() < 0.3)):
        content = kinds[rng.integers(len(kinds))](content, rng) or b"0"
    return content
