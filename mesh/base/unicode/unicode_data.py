#!/usr/bin/env python3
"""Writes unicode_data.inc and unicode_more_data.inc beside this script: what the Hugging Face `tokenizers` package knows of each code point.

The package has several Unicode versions in it (its regular expressions, the language's own, that of its normalizer), so
its answers are asked for one by one instead of being taken from a version of Unicode. Needs tokenizers 0.23 and takes two
minutes:  python3 mesh/base/unicode/unicode_data.py          (or only the second file: --more)
"""

import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NUMERIC, WORD, SPACE = 0x20, 0x40, 0x80  # beside the category's number in the low five bits


def matched_by(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for first in range(0, len(CODE_POINTS), 4096):
        block = CODE_POINTS[first:first + 4096]
        left = set().union(*(piece for piece, _ in split.pre_tokenize_str("".join(map(chr, block)))), ())
        found.update(c for c in block if chr(c) not in left)
    return found


def numeric():
    digits = pre_tokenizers.Digits(individual_digits=True)
    found = set()
    for c in CODE_POINTS:
        if len(digits.pre_tokenize_str("a" + chr(c) + "a")) == 3:
            found.add(c)
    return found


def words():
    tokenizer = Tokenizer(models.BPE({"q": 0}, []))
    tokenizer.add_tokens([AddedToken("a", single_word=True, normalized=False)])
    return {c for c in CODE_POINTS if 1 not in tokenizer.encode(chr(c) + "a").ids}   # 1: "a", where it stands alone


def classes():
    result = dict.fromkeys(range(0x110000), CATEGORIES.index("Cs"))
    for number, category in enumerate(CATEGORIES):
        for c in matched_by(rf"\p{{{category}}}"):
            result[c] = number
    for bit, found in ((NUMERIC, numeric()), (WORD, words()), (SPACE, matched_by(r"\s"))):
        for c in found:
            result[c] |= bit
    return [result[c] for c in range(0x110000)]


def nfc(text):
    return normalizers.NFC().normalize_str(text)


def combining_class(c):
    """As the package has it: a mark newer than its data stays where it is."""
    own = unicodedata.combining(chr(c))
    if own == 0:
        return 0
    other = "\u0334" if own != 1 else "\u0301"  # of class 1 and 230
    text = "q" + (chr(c) + other if own > unicodedata.combining(other) else other + chr(c))
    return own if nfc(text) != text else 0


def decompositions():
    """(code point, first, second or 0, whether it is composed again)"""
    for c in CODE_POINTS:
        found = unicodedata.decomposition(chr(c))
        if not found or found.startswith("<"):
            continue
        parts = [int(part, 16) for part in found.split()]
        whole = nfc("".join(map(chr, parts)))
        if len(parts) == 2 and whole == "".join(map(chr, parts)) and nfc(chr(c)) == chr(c):
            continue  # newer than the package's data
        yield c, parts[0], parts[1] if len(parts) == 2 else 0, int(whole == chr(c))


def runs(values):
    previous = None
    for c, value in enumerate(values):
        if value != previous:
            yield f"0x{c:x}{value:02x}"
        previous = value


def table(kind, name, entries):
    lines, line = [], " "
    for entry in entries:
        if len(line) + len(entry) + 2 > 120:
            lines.append(line)
            line = " "
        line += f" {entry},"
    return "\n".join([f"constexpr {kind} {name}[] = {{", *lines, line, "};"])


def punctuation():
    cuts = pre_tokenizers.Punctuation()
    found = [0] * 0x110000
    for c in CODE_POINTS:
        found[c] = int(len(cuts.pre_tokenize_str("a" + chr(c) + "a")) == 3)
    return found


def compatibility():
    canonical, compatible = normalizers.NFD(), normalizers.NFKD()
    for c in CODE_POINTS:
        found = compatible.normalize_str(chr(c))
        if found != canonical.normalize_str(chr(c)):
            yield ",".join([f"0x{c:x}", str(len(found)), *(f"0x{ord(part):x}" for part in found)])


def write_more():
    parts = [
        "// Written by unicode_data.py.",
        "// Runs of equal code points: the first one << 8 | 1 for punctuation.",
        table("uint32_t", "kPunctuationRuns", runs(punctuation())),
        "// Compatibility decompositions that are not canonical: code point, number of parts, parts.",
        table("uint32_t", "kCompatibility", compatibility()),
    ]
    Path(__file__).with_name("unicode_more_data.inc").write_text("\n".join(parts) + "\n")


def main():
    write_more()
    if "--more" in sys.argv:
        return
    parts = [
        "// Written by unicode_data.py.",
        "// Runs of equal code points: the first one << 8 | its category, numeric, word and space bits.",
        table("uint32_t", "kClassRuns", runs(classes())),
        "// The same of canonical combining classes.",
        table("uint32_t", "kCombiningRuns", runs([combining_class(c) if not 0xD800 <= c < 0xE000 else 0
                                                  for c in range(0x110000)])),
        "// Canonical decompositions: code point, first, second or 0, whether the two are composed again.",
        table("Decomposition", "kDecompositions",
              (f"{{0x{c:x},0x{a:x},{f'0x{b:x}' if b else 0},{again}}}" for c, a, b, again in decompositions())),
    ]
    Path(__file__).with_name("unicode_data.inc").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
