"""Loads a pickle that holds plain values, and refuses every other one before it runs.

An honest dump is made of scalars, strings, lists, tuples, dicts and the memo. A scan over the
bytes admits the opcodes of those and nothing else, so no import, no call and no state setter ever
reaches the virtual machine; it also bounds memo indexes, because CPython allocates a memo of
whatever size a single opcode names. It follows the stack and the memo, with one bit for each value:
whether it is a string or a number. Only those may be keys, because a key is hashed, and the hash of
291 bytes of tuples that share tuples takes longer than anyone waits. Then the C unpickler does the
work, with a `find_class` that raises anyway.

Strings that are no valid UTF-8 (a thread name that the kernel cut inside a character) get question
marks for the offending bytes, since they would otherwise cost the whole dump.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from frd.errors import DumpError

_PLAIN = re.compile(
    rb"""(?sx: [])(}Nuetsa\x85-\x89\x94]{1,16}+  # containers, mark, None, booleans, memoize
    | K. | M.. | J.{4} | G.{8}               # ints of 1, 2 and 4 bytes, float
    | \x8a (?: \x08.{8} | \x01. | \x02.. | \x03.{3} | \x04.{4} | \x05.{5}
             | \x06.{6} | \x07.{7} | \x09.{9})    # long: no longer than an unsigned 64-bit one
    | [hq]. | [jr]..[\x00-\x7f]\x00          # memo get and put: index below 2**23
    | \x80[\x02-\x05] | \x95.{8}             # protocol, frame
    ){0,4096}+"""
)
"""A run of plain opcodes. After all runs in a row is a string, the end, or something that does not
belong there."""
_STRING, _SHORT_STRING, _STOP = b"X\x8c."
_WITH_OPERAND, _LONGEST = b"KMJG\x8ahqjr\x80\x95", 10
"""Plain opcodes with something behind them, and bytes of the longest with what is behind it."""

_TOKEN = re.compile(
    rb"(?s:\((?:[hK].|M..|[jJ].{4})*+e|[Khq].|M..|J.{4}|G.{8}"
    rb"|\x8a(?:\x08.{8}|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x09.{9})"
    rb"|[jr].{4}|\x80.|\x95.{8}|.)"
)
"""One plain opcode with its operand; or all items of a flat list, which leave no trace."""
_KEYS, _GET, _PUT = map(frozenset, (b"KMJG\x88\x89", b"hj", b"qr"))
_POPPED = dict.fromkeys(b"]})N\x8a", 0) | {0x85: 1, 0x86: 2, 0x87: 3}
"""How many values an opcode takes that pushes one which is no key. Numbers of 64 bits may not be
keys, because thousands of them can have one hash."""
_MARK, (_TUPLE, _PAIRS, _PAIR, _MEMOIZE) = b"(", b"tus\x94"
_MOST_MADE = 1 << 24
"""Containers of a pickle."""

_LOAD_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no plain value")


def load_plain(data: bytes, *, source: str) -> Any:
    """The value in `data`: built of dict, list, tuple, str, int, float, bool and None only.

    Raises:
        DumpError: anything else in it, and damage.
    """
    try:
        data = _scan(data, source)
    except (LookupError, ValueError) as error:
        raise DumpError(f"{source}: {error}: no valid dump has it, it may be hostile") from None
    # A buffered reader can be peeked at, and the C unpickler then reads blocks, not bytes.
    file = io.BufferedReader(io.BytesIO(data))
    try:
        return _PlainUnpickler(file).load()
    except MemoryError as error:
        raise DumpError(
            f"{source}: unfolds to more memory than there is: no valid dump does,  "
            "the file may be hostile"
        ) from error
    except _LOAD_ERRORS as error:
        raise DumpError(f"{source}: damaged pickle ({error}): take the dump again") from error


def _scan(data: bytes, source: str) -> bytes:
    """`data`, its strings made valid UTF-8, once all of its opcodes are known to be plain, and all
    keys strings or numbers."""
    if sum(map(data.count, (b"]", b"}", b")", b"("))) > _MOST_MADE:
        raise ValueError(f"over {_MOST_MADE} lists and the like")
    repairs: list[tuple[int, bytes]] = []
    keys = _Keys()
    position = 0
    while True:
        # `match` cannot fail: the pattern admits the empty run.
        while (end := _PLAIN.match(data, position).end()) > position:  # type: ignore[union-attr]
            keys.check(data[position:end])
            position = end
        opcode = data[position] if position < len(data) else -1
        if opcode in (_STRING, _SHORT_STRING):
            start = position + (5 if opcode == _STRING else 2)
            size = int.from_bytes(data[position + 1 : start], "little")
        elif opcode == _STOP:
            break
        elif opcode == -1 or (opcode in _WITH_OPERAND and position > len(data) - _LONGEST):
            raise DumpError(f"{source}: pickle ends early, at byte {position}: take the dump again")
        else:
            raise DumpError(
                f"{source}: opcode {opcode:#04x} at byte {position}: no valid dump has it,  "
                "the file may be hostile or damaged"
            )
        keys.stack.append(False)
        position = start + size
        text = data[start:position]
        if not text.isascii() and (repaired := _repair(text)) != text:
            repairs.append((start, repaired))
    if not repairs:
        return data
    patched = bytearray(data)
    for start, repaired in repairs:
        patched[start : start + len(repaired)] = repaired
    return bytes(patched)


class _Keys:
    """What the pickle machine does, with True for a value that is no key."""

    def __init__(self) -> None:
        self.stack: list[bool] = []
        self._marks: list[list[bool]] = []
        self._memo: dict[int, bool] = {}

    def check(self, run: bytes) -> None:
        """
        Raises:
            ValueError: a key is neither string nor number.
            LookupError: the stack or the memo has no such value.
        """
        stack, marks, memo = self.stack, self._marks, self._memo
        for token in _TOKEN.findall(run):
            opcode = token[0]
            if opcode in _GET:
                stack.append(memo[int.from_bytes(token[1:], "little")])
            elif opcode in _KEYS:
                stack.append(False)
            elif (popped := _POPPED.get(opcode)) is not None:
                stack[len(stack) - popped :] = [True]
            elif opcode in _PUT:
                memo[int.from_bytes(token[1:], "little")] = stack[-1]
            elif opcode == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif token == _MARK:
                marks.append(stack)
                stack = []
            elif opcode in b"etu":
                if opcode == _PAIRS and any(stack[::2]):
                    raise ValueError("a key that is no string or number")
                stack = marks.pop()
                stack += [True] * (opcode == _TUPLE)
            elif opcode in b"as":
                stack.pop()
                if opcode == _PAIR and stack.pop():
                    raise ValueError("a key that is no string or number")
        self.stack = stack


def _repair(text: bytes) -> bytes:
    """Valid UTF-8 of the same length, so that the pickle's framing holds."""
    out = bytearray(text)
    while True:
        try:
            out.decode()
        except UnicodeDecodeError as error:
            out[error.start : error.end] = b"?" * (error.end - error.start)
        else:
            return bytes(out)
