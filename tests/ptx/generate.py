#!/usr/bin/env python3
"""Writes the gen-*.ptx files: instructions on edge values, expected results from exact arithmetic."""

import itertools
import math
import os
import random
import re
from fractions import Fraction

HERE = os.path.dirname(os.path.abspath(__file__))
REG = {1: ".b16", 2: ".b16", 4: ".b32", 8: ".b64"}


def width(ty):
    return int("".join(c for c in ty if c.isdigit()))


def mask(n):
    return (1 << n) - 1


def signed(v, n):
    v &= mask(n)
    return v - (1 << n) if v >> (n - 1) else v


# ---- floats: exact values and one rounding ----

FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
RN, RZ, RM, RP = "rn", "rz", "rm", "rp"


def decode(bits, ty):
    e, f = FORMATS[ty]
    sign = bits >> (e + f) & 1
    exponent = bits >> f & mask(e)
    fraction = bits & mask(f)
    if exponent == mask(e):
        return ("nan", 0, None) if fraction else ("inf", sign, None)
    bias = mask(e - 1)
    if exponent == 0:
        value = Fraction(fraction, 1) * Fraction(2) ** (1 - bias - f)
    else:
        value = Fraction(fraction + (1 << f)) * Fraction(2) ** (exponent - bias - f)
    return ("num", sign, -value if sign else value)


NAN = "nan"


def infinity(ty, sign):
    e, f = FORMATS[ty]
    return sign << (e + f) | mask(e) << f


def encode(value, ty, mode=RN, zero_sign=0):
    """Rounds an exact value."""
    e, f = FORMATS[ty]
    if value == 0:
        return zero_sign << (e + f)
    sign = int(value < 0)
    size = abs(value)
    bias = mask(e - 1)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    exponent = max(exponent, 1 - bias)
    scaled = size / Fraction(2) ** (exponent - f)
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    up = {
        RN: rest > Fraction(1, 2) or rest == Fraction(1, 2) and whole & 1,
        RZ: False,
        RM: rest > 0 and sign,
        RP: rest > 0 and not sign,
    }[mode]
    whole += int(bool(up))
    bits = (exponent - 1 + bias << f) + whole if whole >> f else whole
    if bits >= mask(e) << f:
        stays = mode == RZ or mode == RM and not sign or mode == RP and sign
        bits = (mask(e) << f) - (1 if stays else 0)
    return sign << (e + f) | bits


def flush(bits, ty):
    e, f = FORMATS[ty]
    return bits & 1 << (e + f) if not bits >> f & mask(e) else bits


def add(x, y, ty, mode=RN):
    (ca, sa, a), (cb, sb, b) = decode(x, ty), decode(y, ty)
    if "nan" in (ca, cb) or ca == cb == "inf" and sa != sb:
        return NAN
    if ca == "inf" or cb == "inf":
        return infinity(ty, sa if ca == "inf" else sb)
    zero = sa if sa == sb and a == b == 0 else int(mode == RM)
    return encode(a + b, ty, mode, zero)


def negate(x, ty):
    return x ^ 1 << (width(ty) - 1)


def mul(x, y, ty, mode=RN):
    (ca, sa, a), (cb, sb, b) = decode(x, ty), decode(y, ty)
    if "nan" in (ca, cb) or ca == "inf" and b == 0 or cb == "inf" and a == 0:
        return NAN
    if "inf" in (ca, cb):
        return infinity(ty, sa ^ sb)
    return encode(a * b, ty, mode, sa ^ sb)


def fma(x, y, z, ty, mode=RN):
    (ca, sa, a), (cb, sb, b), (cc, sc, c) = decode(x, ty), decode(y, ty), decode(z, ty)
    if "nan" in (ca, cb, cc) or ca == "inf" and b == 0 or cb == "inf" and a == 0:
        return NAN
    if "inf" in (ca, cb):
        return NAN if cc == "inf" and sc != sa ^ sb else infinity(ty, sa ^ sb)
    if cc == "inf":
        return z
    zero = sc if a * b == 0 and c == 0 and sc == sa ^ sb else int(mode == RM)
    return encode(a * b + c, ty, mode, zero)


def div(x, y, ty, mode=RN):
    (ca, sa, a), (cb, sb, b) = decode(x, ty), decode(y, ty)
    if "nan" in (ca, cb) or ca == cb == "inf" or a == b == 0:
        return NAN
    if ca == "inf" or b == 0:
        return infinity(ty, sa ^ sb)
    if cb == "inf":
        return (sa ^ sb) << (width(ty) - 1)
    return encode(a / b, ty, mode, sa ^ sb)


def sqrt(x, ty, mode=RN):
    c, s, a = decode(x, ty)
    if c == "nan" or s and a != 0:
        return NAN
    if c == "inf" or a == 0:
        return x
    # Enough digits that what is left decides nothing but the direction.
    scale = 1200
    root = Fraction(math.isqrt((a * Fraction(4) ** scale).__floor__()), 2**scale)
    if root * root != a:
        root += Fraction(1, 2 ** (scale + 4))
    return encode(root, ty, mode)


def saturate(bits, ty):
    if bits == NAN:
        return 0
    _, s, v = decode(bits, ty)
    if s:
        return 0
    one = encode(Fraction(1), ty)
    return one if v is None or v > 1 else bits


def order(x, y, ty, least, nan_wins):
    a, b = decode(x, ty), decode(y, ty)
    if a[0] == "nan" or b[0] == "nan":
        if nan_wins or a[0] == b[0]:
            return NAN
        return y if a[0] == "nan" else x
    n = width(ty)
    key = lambda v: -(v & mask(n - 1)) - 1 if v >> (n - 1) else v
    return (min if least else max)(x, y, key=key)


def compare(word, x, y, ty):
    if ty in FORMATS:
        a, b = decode(x, ty), decode(y, ty)
        if word == "num":
            return "nan" not in (a[0], b[0])
        if word == "nan":
            return "nan" in (a[0], b[0])
        if "nan" in (a[0], b[0]):
            return word.endswith("u") and len(word) == 3
        big = Fraction(2) ** 2000
        value = lambda v: v[2] if v[0] == "num" else (-big if v[1] else big)
        x, y, word = value(a), value(b), word[:2]
    elif ty.startswith("s"):
        x, y = signed(x, width(ty)), signed(y, width(ty))
    word = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(word, word)
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[word]


# ---- writing ----


def show(value, ty):
    return "nan" if value == NAN else hex(value & mask(width(ty)))


def write(name, inputs, operations, extra=""):
    """One kernel: thread i computes every operation on element i of the inputs.

    inputs: (type, values); operations: (instructions with {d} {a} {b} {c}, type, function, ulp)."""
    n = len(inputs[0][1])
    assert all(len(v) == n for _, v in inputs) and n <= 1024
    text = [f"//@ run kernel=k block={n}"]
    for ty, values in inputs:
        text.append(f"//@ in {ty} " + " ".join(show(v, ty) for v in values))
    for code, ty, function, *ulp in operations:
        expected = [function(*row) for row in zip(*(v for _, v in inputs))]
        tolerance = f" ulp={ulp[0]}" if ulp else ""
        text.append(f"// {code}")
        text.append(f"//@ out {ty}{tolerance} " + " ".join(show(v, ty) for v in expected))
    text += [".version 8.0", ".target sm_90", ".address_size 64", ""]
    count = len(inputs) + len(operations)
    text.append(".visible .entry k(" + ", ".join(f".param .u64 p{i}" for i in range(count)) + ")\n{")
    text += ["\t.reg .pred %p<8>;", "\t.reg .b16 %h<8>;", "\t.reg .b32 %w<8>;", "\t.reg .b64 %x<8>;", "\t.reg .b64 %q<4>;"]
    letters = "abc"
    for i, (ty, _) in enumerate(inputs):
        text.append(f"\t.reg {REG[width(ty) // 8]} %{letters[i]};")
    text += ["\t.reg .b32 %t;", "\tmov.u32 %t, %tid.x;"]

    def address(i, ty):
        return [
            f"\tld.param.u64 %q0, [p{i}];",
            f"\tmul.wide.u32 %q1, %t, {width(ty) // 8};",
            "\tadd.s64 %q0, %q0, %q1;",
        ]

    for i, (ty, _) in enumerate(inputs):
        text += address(i, ty) + [f"\tld.global.b{width(ty)} %{letters[i]}, [%q0];"]
    for k, (code, ty, _, *_) in enumerate(operations):
        text.append("\t{")
        text.append(f"\t.reg {REG[width(ty) // 8]} %d;")
        for line in code.split(";"):
            line = line.strip()
            if line:
                names = {"d": "%d", "a": "%a", "b": "%b", "c": "%c"}
                for key, register in names.items():
                    line = line.replace("{" + key + "}", register)
                text.append(f"\t{line};")
        text += address(len(inputs) + k, ty) + [f"\tst.global.b{width(ty)} [%q0], %d;", "\t}"]
    text += ["\tret;", "}", ""]
    with open(os.path.join(HERE, f"gen-{name}.ptx"), "w") as out:
        out.write("\n".join(text) + extra)


def pairs(values):
    both = list(itertools.product(values, values))
    return [a for a, _ in both], [b for _, b in both]


def divide(a, b, n, sign, rem):
    """Division as GPUs do it: by zero all ones."""
    if sign:
        a, b = signed(a, n), signed(b, n)
    if b == 0:
        return -1
    q = abs(a) // abs(b)
    q = q if (a < 0) == (b < 0) else -q
    return a - q * b if rem else q


def integers():
    for n in (16, 32, 64):
        top = 1 << (n - 1)
        values = [0, 1, 2, 7, 0x55, mask(n) // 3, top - 1, top, top + 1, mask(n) - 1, mask(n), 0x1234567890ABCDEF & mask(n)]
        a, b = pairs(values)
        u, s, t = f"u{n}", f"s{n}", f"b{n}"
        S = lambda v: signed(v, n)
        ops = [
            (f"add.{u} {{d}}, {{a}}, {{b}}", u, lambda a, b: a + b),
            (f"sub.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: a - b),
            (f"mul.lo.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: a * b),
            (f"mul.hi.{u} {{d}}, {{a}}, {{b}}", u, lambda a, b: a * b >> n),
            (f"mul.hi.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: S(a) * S(b) >> n),
            (f"mad.lo.{s} {{d}}, {{a}}, {{b}}, {{a}}", u, lambda a, b: a * b + a),
            (f"div.{u} {{d}}, {{a}}, {{b}}", u, lambda a, b: divide(a, b, n, False, False)),
            (f"div.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: divide(a, b, n, True, False)),
            (f"rem.{u} {{d}}, {{a}}, {{b}}", u, lambda a, b: divide(a, b, n, False, True)),
            (f"rem.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: divide(a, b, n, True, True)),
            (f"div.{s} {{d}}, {{a}}, 7", u, lambda a, b: divide(a, 7, n, True, False)),
            (f"rem.{u} {{d}}, {{a}}, 10", u, lambda a, b: divide(a, 10, n, False, True)),
            (f"min.{u} {{d}}, {{a}}, {{b}}", u, min),
            (f"max.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: max(S(a), S(b))),
            (f"min.{s} {{d}}, {{a}}, {{b}}", u, lambda a, b: min(S(a), S(b))),
            (f"abs.{s} {{d}}, {{a}}", u, lambda a, b: abs(S(a))),
            (f"neg.{s} {{d}}, {{a}}", u, lambda a, b: -a),
            (f"sad.{u} {{d}}, {{a}}, {{b}}, {{b}}", u, lambda a, b: abs(a - b) + b),
            (f"sad.{s} {{d}}, {{a}}, {{b}}, {{b}}", u, lambda a, b: abs(S(a) - S(b)) + b),
            (f"and.{t} {{d}}, {{a}}, {{b}}", u, lambda a, b: a & b),
            (f"or.{t} {{d}}, {{a}}, {{b}}", u, lambda a, b: a | b),
            (f"xor.{t} {{d}}, {{a}}, {{b}}", u, lambda a, b: a ^ b),
            (f"not.{t} {{d}}, {{a}}", u, lambda a, b: ~a),
            (f"cnot.{t} {{d}}, {{a}}", u, lambda a, b: int(a == 0)),
            (f"setp.lt.{s} %p1, {{a}}, {{b}}; selp.{t} {{d}}, {{a}}, {{b}}, %p1", u, lambda a, b: a if S(a) < S(b) else b),
        ]
        if n == 32:
            clamp = lambda v: max(-(1 << 31), min(v, (1 << 31) - 1))
            low = lambda v, s: signed(v & 0xFFFFFF, 24) if s else v & 0xFFFFFF
            ops += [
                ("add.sat.s32 {d}, {a}, {b}", u, lambda a, b: clamp(S(a) + S(b))),
                ("sub.sat.s32 {d}, {a}, {b}", u, lambda a, b: clamp(S(a) - S(b))),
                ("mad.hi.sat.s32 {d}, {a}, {b}, {a}", u, lambda a, b: clamp((S(a) * S(b) >> 32) + S(a))),
                ("mul24.lo.s32 {d}, {a}, {b}", u, lambda a, b: low(a, 1) * low(b, 1)),
                ("mul24.hi.u32 {d}, {a}, {b}", u, lambda a, b: low(a, 0) * low(b, 0) >> 16),
                ("mad24.lo.u32 {d}, {a}, {b}, {a}", u, lambda a, b: low(a, 0) * low(b, 0) + a),
                ("mul.wide.s32 {d}, {a}, {b}", "u64", lambda a, b: S(a) * S(b)),
                ("mul.wide.u32 {d}, {a}, {b}", "u64", lambda a, b: a * b),
                ("mul.wide.u32 %x1, {a}, {a}; mad.wide.s32 {d}, {a}, {b}, %x1", "u64", lambda a, b: S(a) * S(b) + a * a),
                ("slct.s32.s32 {d}, {a}, {b}, {a}", u, lambda a, b: a if S(a) >= 0 else b),
                ("max.relu.s32 {d}, {a}, {b}", u, lambda a, b: max(S(a), S(b), 0)),
                ("max.s16x2 {d}, {a}, {b}", u, lambda a, b: sum((max(signed(a >> k, 16), signed(b >> k, 16)) & 0xFFFF) << k for k in (0, 16))),
            ]
        if n == 16:
            ops.append(("mul.wide.s16 {d}, {a}, {b}", "u32", lambda a, b: S(a) * S(b)))
            ops.append(("mul.wide.u16 {d}, {a}, {b}", "u32", lambda a, b: a * b))
        if n > 16:
            find = lambda v: v.bit_length() - 1 if v else mask(32)
            flip = lambda a: a ^ mask(n) if a >> (n - 1) else a
            ops += [
                (f"popc.{t} {{d}}, {{a}}", "u32", lambda a, b: bin(a).count("1")),
                (f"clz.{t} {{d}}, {{a}}", "u32", lambda a, b: n - a.bit_length()),
                (f"brev.{t} {{d}}, {{a}}", u, lambda a, b: int(f"{a:0{n}b}"[::-1], 2)),
                (f"bfind.{u} {{d}}, {{a}}", "u32", lambda a, b: find(a)),
                (f"bfind.{s} {{d}}, {{a}}", "u32", lambda a, b: find(flip(a))),
                (f"bfind.shiftamt.{u} {{d}}, {{a}}", "u32", lambda a, b: n - 1 - find(a) if a else mask(32)),
                (
                    f"add.cc.{u} %{'w' if n == 32 else 'x'}1, {{a}}, {{b}}; addc.{u} {{d}}, {{b}}, 0",
                    u,
                    lambda a, b: b + (a + b >> n),
                ),
                (
                    f"sub.cc.{u} %{'w' if n == 32 else 'x'}1, {{a}}, {{b}}; subc.cc.{u} %{'w' if n == 32 else 'x'}2, 0, 0; subc.{u} {{d}}, {{a}}, 0",
                    u,
                    lambda a, b: a - int(a < b),
                ),
                (
                    f"mad.lo.cc.{u} %{'w' if n == 32 else 'x'}1, {{a}}, {{b}}, {{a}}; madc.hi.{u} {{d}}, {{a}}, {{b}}, {{b}}",
                    u,
                    lambda a, b: (a * b >> n) + b + ((a * b & mask(n)) + a >> n),
                ),
            ]
        write(f"int{n}", [(u, a), (u, b)], ops)


def shifts():
    for n in (16, 32, 64):
        top = 1 << (n - 1)
        values = [0, 1, mask(n), top, 0xDEADBEEFCAFEF00D & mask(n)]
        amounts = [0, 1, 7, n - 1, n, n + 1, 255, mask(32)]
        both = list(itertools.product(values, amounts))
        a, b = [x for x, _ in both], [y for _, y in both]
        u = f"u{n}"
        ops = [
            (f"shl.b{n} {{d}}, {{a}}, {{b}}", u, lambda a, b: a << b if b < n else 0),
            (f"shr.u{n} {{d}}, {{a}}, {{b}}", u, lambda a, b: a >> min(b, n)),
            (f"shr.s{n} {{d}}, {{a}}, {{b}}", u, lambda a, b: signed(a, n) >> min(b, n)),
            (f"shl.b{n} {{d}}, {{a}}, 3", u, lambda a, b: a << 3),
        ]
        write(f"shift{n}", [(u, a), ("u32", b)], ops)


def fields():
    values = [0x00000000, 0xFFFFFFFF, 0x80000001, 0x12345678, 0xDEADBEEF]
    numbers = [0, 1, 5, 8, 31, 32, 33, 255]
    rows = list(itertools.product(values, numbers, numbers))[:320]
    a, b, c = zip(*rows)

    def bfe(a, b, c, s, n=32):
        pos, length = b & 255, c & 255
        sign = (a >> min(pos + length - 1, n - 1)) & 1 if s and length else 0
        return sum(((a >> pos + i & 1) if i < length and pos + i < n else sign) << i for i in range(n))

    def bfi(f, base, b, c, n=32):
        pos, length = b & 255, c & 255
        for i in range(length):
            if pos + i < n:
                base = base & ~(1 << pos + i) | (f >> i & 1 if i < n else 0) << pos + i
        return base

    def shf(low, high, c, left, clamp):
        k = min(c, 32) if clamp else c & 31
        both = high << 32 | low
        return both << k >> 32 if left else both >> k

    def szext(a, b, s, wrap):
        k = b & 31 if wrap else min(b, 32)
        if k == 0:
            return 0
        v = a & mask(k)
        return signed(v, k) if s else v

    def bmsk(a, b, wrap):
        p, w = (a & 31, b & 31) if wrap else (min(a, 32), min(b, 32))
        return mask(w) << p

    def prmt(a, b, c):
        data = b << 32 | a
        out = 0
        for i in range(4):
            s = c >> 4 * i & 15
            byte = data >> 8 * (s & 7) & 255
            if s & 8:
                byte = 255 if byte & 128 else 0
            out |= byte << 8 * i
        return out

    def lop(table):
        return lambda a, b, c: sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))

    def dot(a, b, c, sa, sb, parts):
        total = c
        for i in range(parts):
            w = 32 // parts
            x, y = a >> w * i & mask(w), b >> 8 * i & 255
            total += (signed(x, w) if sa else x) * (signed(y, 8) if sb else y)
        return total

    ops = [
        ("bfe.u32 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: bfe(a, b, c, False)),
        ("bfe.s32 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: bfe(a, b, c, True)),
        ("bfi.b32 {d}, {a}, 0x0F0F0F0F, {b}, {c}", "u32", lambda a, b, c: bfi(a, 0x0F0F0F0F, b, c)),
        ("cvt.u64.u32 %x1, {a}; bfe.s64 {d}, %x1, {b}, {c}", "u64", lambda a, b, c: bfe(a, b, c, True, 64)),
        ("cvt.u64.u32 %x1, {a}; bfi.b64 {d}, %x1, -2, {b}, {c}", "u64", lambda a, b, c: bfi(a, mask(64) - 1, b, c, 64)),
        ("shf.l.clamp.b32 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: shf(a, b, c, True, True)),
        ("shf.l.wrap.b32 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: shf(a, b, c, True, False)),
        ("shf.r.clamp.b32 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: shf(a, b, c, False, True)),
        ("shf.r.wrap.b32 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: shf(a, b, c, False, False)),
        ("szext.clamp.s32 {d}, {a}, {b}", "u32", lambda a, b, c: szext(a, b, True, False)),
        ("szext.wrap.u32 {d}, {a}, {b}", "u32", lambda a, b, c: szext(a, b, False, True)),
        ("bmsk.clamp.b32 {d}, {b}, {c}", "u32", lambda a, b, c: bmsk(b, c, False)),
        ("bmsk.wrap.b32 {d}, {b}, {c}", "u32", lambda a, b, c: bmsk(b, c, True)),
        ("xor.b32 %w1, {a}, -1; prmt.b32 {d}, {a}, %w1, 0x7351", "u32", lambda a, b, c: prmt(a, a ^ mask(32), 0x7351)),
        ("xor.b32 %w1, {a}, -1; prmt.b32 {d}, {a}, %w1, 0x5410", "u32", lambda a, b, c: prmt(a, a ^ mask(32), 0x5410)),
        ("prmt.b32 {d}, {a}, {b}, {a}", "u32", lambda a, b, c: prmt(a, b, a)),
        ("prmt.b32.rc16 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: prmt(a, b, 0x3232 if c & 1 else 0x1010)),
        ("prmt.b32.f4e {d}, {a}, {b}, {c}", "u32", lambda a, b, c: prmt(a, b, [0x3210, 0x4321, 0x5432, 0x6543][c & 3])),
        ("prmt.b32.b4e {d}, {a}, {b}, {c}", "u32", lambda a, b, c: prmt(a, b, [0x5670, 0x6701, 0x7012, 0x0123][c & 3])),
        ("prmt.b32.rc8 {d}, {a}, {b}, {c}", "u32", lambda a, b, c: prmt(a, b, 0x1111 * (c & 3))),
        ("prmt.b32.ecl {d}, {a}, {b}, {c}", "u32", lambda a, b, c: prmt(a, b, [0x3210, 0x3211, 0x3222, 0x3333][c & 3])),
        ("prmt.b32.ecr {d}, {a}, {b}, {c}", "u32", lambda a, b, c: prmt(a, b, [0x0000, 0x1110, 0x2210, 0x3210][c & 3])),
        ("dp4a.u32.u32 {d}, {a}, {a}, {b}", "u32", lambda a, b, c: dot(a, a, b, 0, 0, 4)),
        ("dp4a.s32.u32 {d}, {a}, {a}, {b}", "u32", lambda a, b, c: dot(a, a, b, 1, 0, 4)),
        ("dp2a.lo.s32.s32 {d}, {a}, {a}, {b}", "u32", lambda a, b, c: dot(a, a, b, 1, 1, 2)),
        ("dp2a.hi.u32.s32 {d}, {a}, {a}, {b}", "u32", lambda a, b, c: dot(a, a >> 16, b, 0, 1, 2)),
    ]
    write("fields", [("u32", a), ("u32", b), ("u32", c)], ops)
    # Every truth table on all eight combinations at once.
    ops = [(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table}", "u32", lop(table)) for table in range(0, 256, 5)]
    write("lop3", [("u32", [0xF0F0F0F0]), ("u32", [0xCCCCCCCC]), ("u32", [0xAAAAAAAA])], ops)


EDGES = {
    "f32": [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800001, 0x3FFFFFFF, 0x4B800001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3EAAAAAB, 0x0D800000, 0x5F123456],
    "f64": [0, 1 << 63, 1, 0x800FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000001, 0x3FFFFFFFFFFFFFFF, 0x4340000000000001, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x3FD5555555555555, 0x1FF8000000000000, 0x5FE1234567890ABC],
    "f16": [0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0xBC01, 0x3FFF, 0x6801, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x3555, 0x1000, 0x5ABC],
    "bf16": [0, 0x8000, 1, 0x807F, 0x0080, 0x3F80, 0xBF81, 0x3FFF, 0x4B81, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x3EAB, 0x0D80, 0x5F12],
}


def floats():
    for ty in ("f32", "f64"):
        a, b = pairs(EDGES[ty])
        c = [EDGES[ty][(i * 7 + 3) % 16] for i in range(len(a))]
        ops = []
        for mode in (RN, RZ, RM, RP):
            ops += [
                (f"add.{mode}.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c, m=mode: add(a, b, ty, m)),
                (f"sub.{mode}.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c, m=mode: add(a, negate(b, ty), ty, m)),
                (f"mul.{mode}.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c, m=mode: mul(a, b, ty, m)),
                (f"div.{mode}.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c, m=mode: div(a, b, ty, m)),
                (f"fma.{mode}.{ty} {{d}}, {{a}}, {{b}}, {{c}}", ty, lambda a, b, c, m=mode: fma(a, b, c, ty, m)),
                (f"sqrt.{mode}.{ty} {{d}}, {{a}}", ty, lambda a, b, c, m=mode: sqrt(a, ty, m)),
                (f"rcp.{mode}.{ty} {{d}}, {{a}}", ty, lambda a, b, c, m=mode: div(encode(Fraction(1), ty), a, ty, m)),
            ]
        sign = 1 << (width(ty) - 1)
        ops += [
            (f"min.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: order(a, b, ty, True, False)),
            (f"max.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: order(a, b, ty, False, False)),
            (f"copysign.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: b & ~sign | a & sign),
        ]
        test = lambda word, check: (f"testp.{word}.{ty} %p1, {{a}}; selp.u32 {{d}}, 1, 0, %p1", "u32", lambda a, b, c: int(check(decode(a, ty), a)))
        least = Fraction(2) ** (2 - (1 << FORMATS[ty][0] - 1))
        ops += [
            test("finite", lambda v, _: v[0] == "num"),
            test("infinite", lambda v, _: v[0] == "inf"),
            test("number", lambda v, _: v[0] != "nan"),
            test("notanumber", lambda v, _: v[0] == "nan"),
            # Zero counts as normal.
            test("normal", lambda v, _: v[0] == "num" and (v[2] == 0 or abs(v[2]) >= least)),
            test("subnormal", lambda v, _: v[0] == "num" and 0 < abs(v[2]) < least),
        ]
        if ty == "f32":
            F = lambda v: v if v == NAN else flush(v, ty)
            ops += [
                ("add.ftz.f32 {d}, {a}, {b}", ty, lambda a, b, c: F(add(F(a), F(b), ty))),
                ("mul.ftz.f32 {d}, {a}, {b}", ty, lambda a, b, c: F(mul(F(a), F(b), ty))),
                ("fma.rn.ftz.f32 {d}, {a}, {b}, {c}", ty, lambda a, b, c: F(fma(F(a), F(b), F(c), ty))),
                ("add.sat.f32 {d}, {a}, {b}", ty, lambda a, b, c: saturate(add(a, b, ty), ty)),
                ("fma.rz.sat.f32 {d}, {a}, {b}, {c}", ty, lambda a, b, c: saturate(fma(a, b, c, ty, RZ), ty)),
                ("min.NaN.f32 {d}, {a}, {b}", ty, lambda a, b, c: order(a, b, ty, True, True)),
                ("max.ftz.f32 {d}, {a}, {b}", ty, lambda a, b, c: order(F(a), F(b), ty, False, False)),
                ("abs.ftz.f32 {d}, {a}", ty, lambda a, b, c: F(a) & ~sign),
                ("neg.f32 {d}, {a}", ty, lambda a, b, c: a ^ sign),
                ("slct.u32.f32 {d}, 1, 2, {a}", "u32", lambda a, b, c: 1 if compare("ge", a, 0, ty) else 2),
            ]
        write(ty, [(ty, a), (ty, b), (ty, c)], ops)


def halves():
    for ty in ("f16", "bf16"):
        a, b = pairs(EDGES[ty])
        c = [EDGES[ty][(i * 7 + 3) % 16] for i in range(len(a))]
        relu = lambda v: v if v == NAN or not v >> 15 else 0
        ops = [
            (f"add.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: add(a, b, ty)),
            (f"sub.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: add(a, negate(b, ty), ty)),
            (f"mul.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: mul(a, b, ty)),
            (f"fma.rn.{ty} {{d}}, {{a}}, {{b}}, {{c}}", ty, lambda a, b, c: fma(a, b, c, ty)),
            (f"fma.rn.relu.{ty} {{d}}, {{a}}, {{b}}, {{c}}", ty, lambda a, b, c: relu(fma(a, b, c, ty))),
            (f"min.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: order(a, b, ty, True, False)),
            (f"max.NaN.{ty} {{d}}, {{a}}, {{b}}", ty, lambda a, b, c: order(a, b, ty, False, True)),
            (f"neg.{ty} {{d}}, {{a}}", ty, lambda a, b, c: a ^ 0x8000),
            (f"abs.{ty} {{d}}, {{a}}", ty, lambda a, b, c: a & 0x7FFF),
        ]
        for word in ("lt", "equ", "ne", "nan"):
            ops.append((f"setp.{word}.{ty} %p1, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, %p1", "u32", lambda a, b, c, w=word: int(compare(w, a, b, ty))))
        if ty == "f16":
            ops.append(("add.sat.f16 {d}, {a}, {b}", ty, lambda a, b, c: saturate(add(a, b, ty), ty)))
            ops.append(("add.ftz.f16 {d}, {a}, {b}", ty, lambda a, b, c: NAN if add(flush(a, ty), flush(b, ty), ty) == NAN else flush(add(flush(a, ty), flush(b, ty), ty), ty)))
        write(ty, [(ty, a), (ty, b), (ty, c)], ops)


def integral(bits, ty, word):
    """The value rounded to an integer."""
    v = decode(bits, ty)[2]
    low = v.numerator // v.denominator
    rest = v - low
    if word == "rni":
        return low + int(rest > Fraction(1, 2) or rest == Fraction(1, 2) and low & 1)
    if word == "rzi":
        return low if v >= 0 else -((-v).numerator // v.denominator)
    return low if word == "rmi" else low + int(rest > 0)


def to_integer(bits, ty, to, word):
    n = width(to)
    c, s, _ = decode(bits, ty)
    low, high = (-(1 << n - 1), (1 << n - 1) - 1) if to[0] == "s" else (0, mask(n))
    if c == "nan":
        return 1 << n - 1 if ty == "f64" or n == 64 else 0
    if c == "inf":
        return low if s else high
    return max(low, min(high, integral(bits, ty, word)))


def to_float(bits, ty, to, mode):
    c, s, v = decode(bits, ty)
    return NAN if c == "nan" else infinity(to, s) if c == "inf" else encode(v, to, mode, s)


def register(ty):
    return {8: "h", 16: "h", 32: "w", 64: "x"}[width(ty)]


def conversions():
    values = {
        "f32": EDGES["f32"] + [0x3F000000, 0x3FC00000, 0xC0200000, 0x4F000000, 0xCF000001, 0x5F800000, 0x437F8000, 0xC3008000, 0x477FFF80],
        "f64": EDGES["f64"] + [0x3FE0000000000000, 0x3FF8000000000000, 0xC004000000000000, 0x41DFFFFFFFC00000, 0xC1E0000000200000, 0x43F0000000000000, 0x3FF0000010000000, 0x3FF0000030000000, 0x40EFFFF000000000],
        "f16": EDGES["f16"] + [0x3800, 0x3E00, 0xC100, 0x5BF8, 0xD808, 0x7BFF],
        "bf16": EDGES["bf16"] + [0x3F00, 0x3FC0, 0xC020],
    }
    for ty, list_ in values.items():
        ops = []
        for to in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
            for word in ("rni", "rzi", "rmi", "rpi"):
                if word != "rzi" and to not in ("s32", "u64", "u8") or ty == "bf16" and "8" in to:
                    continue
                wide = {"s8": "s16", "u8": "u16"}.get(to, to)
                ops.append((f"cvt.{word}.{to}.{ty} {{d}}, {{a}}", wide, lambda a, t=to, w=word, x=wide: to_integer(a, ty, t, w) if t == x else (signed(to_integer(a, ty, t, w), 8) if t[0] == "s" else to_integer(a, ty, t, w))))
        for to in ("f16", "bf16", "f32", "f64"):
            if to == ty or {to, ty} == {"f16", "bf16"} or (ty, to) in (("bf16", "f64"), ("f64", "bf16")):
                continue
            if FORMATS[to][1] > FORMATS[ty][1]:
                ops.append((f"cvt.{to}.{ty} {{d}}, {{a}}", to, lambda a, t=to: to_float(a, ty, t, RN)))
            else:
                for mode in (RN, RZ) if "16" in to else (RN, RZ, RM, RP):
                    ops.append((f"cvt.{mode}.{to}.{ty} {{d}}, {{a}}", to, lambda a, t=to, m=mode: to_float(a, ty, t, m)))
        if ty in ("f32", "f64"):
            for word in ("rni", "rzi", "rmi", "rpi"):
                def same(a, w=word):
                    c, s, v = decode(a, ty)
                    return NAN if c == "nan" else a if c == "inf" else encode(Fraction(integral(a, ty, w)), ty, RN, s)
                ops.append((f"cvt.{word}.{ty}.{ty} {{d}}, {{a}}", ty, same))
            ops.append((f"cvt.sat.{ty}.{ty} {{d}}, {{a}}", ty, lambda a: saturate(a if decode(a, ty)[0] != "nan" else NAN, ty)))
        if ty == "f32":
            both = lambda a, to: (0x7FFF if to_float(a, ty, to, RN) == NAN else to_float(a, ty, to, RN)) << 16 | encode(Fraction(1), to)
            ops.append(("cvt.rn.f16x2.f32 {d}, {a}, 0f3F800000", "u32", lambda a: both(a, "f16")))
            ops.append(("cvt.rn.bf16x2.f32 {d}, {a}, 0f3F800000", "u32", lambda a: both(a, "bf16")))
        write(f"cvt-{ty}", [(ty, list_)], ops)
    for n in (16, 32, 64):
        top = 1 << n - 1
        list_ = [0, 1, 5, 127, 128, 255, 256, top - 1, top, top + 1, mask(n), mask(n) - 1, mask(n) - 127, 0x1000001 & mask(n), 0x1000003 & mask(n), 0x20000000000001 & mask(n), 0x7FFFFF4000000001 & mask(n)]
        ops = []
        for sign in "us":
            ty = f"{sign}{n}"
            value = (lambda a: signed(a, n)) if sign == "s" else (lambda a: a)
            for to in ("f16", "f32", "f64"):
                for mode in (RN, RZ, RM, RP):
                    ops.append((f"cvt.{mode}.{to}.{ty} {{d}}, {{a}}", to, lambda a, t=to, m=mode, v=value: encode(Fraction(v(a)), t, m)))
            for to in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
                k = width(to)
                wide = {8: to[0] + "16"}.get(k, to)
                trim = (lambda x, k=k: signed(x, k)) if to[0] == "s" else (lambda x, k=k: x & mask(k))
                if to != ty:
                    ops.append((f"cvt.{to}.{ty} {{d}}, {{a}}", wide, lambda a, v=value, t=trim: t(v(a))))
                    low, high = (-(1 << k - 1), (1 << k - 1) - 1) if to[0] == "s" else (0, mask(k))
                    least, most = (-(1 << n - 1), (1 << n - 1) - 1) if sign == "s" else (0, mask(n))
                    if low <= least and most <= high:
                        continue
                    ops.append((f"cvt.sat.{to}.{ty} {{d}}, {{a}}", wide, lambda a, v=value, l=low, h=high: max(l, min(h, v(a)))))
        write(f"cvt-i{n}", [(f"u{n}", list_)], ops)


def comparisons():
    for ty in ("u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"):
        n = width(ty)
        values = EDGES[ty][:14] if ty in EDGES else [0, 1, 1 << n - 1, (1 << n - 1) - 1, mask(n), 77]
        a, b = pairs(values)
        words = ["eq", "ne", "lt", "le", "gt", "ge"]
        words += ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] if ty in EDGES else []
        words += ["lo", "ls", "hi", "hs"] if ty[0] == "u" else []
        ops = []
        for word in words:
            ops.append((f"setp.{word}.{ty} %p1, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, %p1", "u32", lambda a, b, w=word: int(compare(w, a, b, ty))))
        ops += [
            (f"setp.eq.{ty} %p3, {{a}}, {{a}}; setp.lt.and.{ty} %p1|%p2, {{a}}, {{b}}, !%p3; selp.u32 %w1, 1, 0, %p1; selp.u32 %w2, 2, 0, %p2; or.b32 {{d}}, %w1, %w2", "u32",
             lambda a, b: 0 if compare("eq", a, a, ty) else (1 if compare("lt", a, b, ty) else 2)),
            (f"setp.eq.{ty} %p3, {{a}}, {{a}}; setp.lt.xor.{ty} %p1|%p2, {{a}}, {{b}}, %p3; selp.u32 %w1, 1, 0, %p1; selp.u32 %w2, 2, 0, %p2; or.b32 {{d}}, %w1, %w2", "u32",
             lambda a, b: int(compare("lt", a, b, ty) != compare("eq", a, a, ty)) | 2 * int((not compare("lt", a, b, ty)) != compare("eq", a, a, ty))),
        ]
        if n == 32:
            ops += [
                (f"set.ge.u32.{ty} {{d}}, {{a}}, {{b}}", "u32", lambda a, b: mask(32) if compare("ge", a, b, ty) else 0),
                (f"set.ne.f32.{ty} {{d}}, {{a}}, {{b}}", "f32", lambda a, b: 0x3F800000 if compare("ne", a, b, ty) else 0),
            ]
        write(f"compare-{ty}", [(ty, a), (ty, b)], ops)


def approximations():
    """Tolerances are those of the PTX manual, in units of the last place at the result."""
    def near(f):
        def value(a):
            c, s, v = decode(a, "f32")
            x = math.nan if c == "nan" else (-math.inf if s else math.inf) if c == "inf" else float(v)
            try:
                y = f(x)
            except (ValueError, ZeroDivisionError):
                y = math.nan
            except OverflowError:
                y = math.inf
            if math.isnan(y):
                return NAN
            return infinity("f32", int(y < 0)) if math.isinf(y) else encode(Fraction(y), "f32", RN, int(math.copysign(1, y) < 0))
        return value
    values = [0, 0x80000000, 0x3F800000, 0xBF800000, 0x3F000000, 0x40490FDB, 0xC0000000, 0x3DCCCCCD, 0x40000001, 0xC0200000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3A83126F]
    positive = [v & 0x7FFFFFFF for v in values]
    log = lambda x: -math.inf if x == 0 else math.log2(x)
    power = lambda x: math.inf if x == math.inf else 2.0**x
    ops = [
        ("ex2.approx.f32 {d}, {a}", "f32", lambda a, b: near(power)(a), 4),
        ("lg2.approx.f32 {d}, {b}", "f32", lambda a, b: near(log)(b), 4),
        # Their error is bounded absolutely: next to 2 it is one in units of the last place.
        ("sin.approx.f32 %w1, {a}; add.f32 {d}, %w1, 0f40000000", "f32", lambda a, b: near(lambda x: math.sin(x) + 2)(a), 6),
        ("cos.approx.f32 %w1, {a}; add.f32 {d}, %w1, 0f40000000", "f32", lambda a, b: near(lambda x: math.cos(x) + 2)(a), 6),
        ("tanh.approx.f32 {d}, {a}", "f32", lambda a, b: near(math.tanh)(a), 8192),
        ("rcp.approx.f32 {d}, {a}", "f32", lambda a, b: div(0x3F800000, a, "f32"), 1),
        ("rsqrt.approx.f32 {d}, {b}", "f32", lambda a, b: near(lambda x: math.inf if x == 0 else 1 / math.sqrt(x))(b), 2),
        ("sqrt.approx.f32 {d}, {b}", "f32", lambda a, b: sqrt(b, "f32"), 1),
        ("div.approx.f32 {d}, {b}, 0f40400000", "f32", lambda a, b: div(b, 0x40400000, "f32"), 2),
        ("div.full.f32 {d}, {a}, 0f40400000", "f32", lambda a, b: div(a, 0x40400000, "f32"), 2),
    ]
    write("approx", [("f32", values), ("f32", positive)], ops)


def videos():
    """`v...2` and `v...4`, in part types that agree and that do not."""
    values = [0, 0xFFFFFFFF, 0x80018001, 0x7FFF8000, 0x12345678, 0xDEADBEEF, 0x80FF7F01, 0x01020304]
    a, b = pairs(values)
    c = [i * 0x01010101 & mask(32) for i in range(len(a))]

    def average(x, y):
        return x + y + (x + y >= 0) >> 1

    operations = {
        "vadd": lambda x, y: x + y,
        "vsub": lambda x, y: x - y,
        "vavrg": average,
        "vabsdiff": lambda x, y: abs(x - y),
        "vmin": min,
        "vmax": max,
    }

    def apply(f, n, types, sat, total, a, b, c):
        d, x, y = types
        word, sum_ = 0, c
        for at in range(0, 32, n):
            p, q = a >> at & mask(n), b >> at & mask(n)
            r = f(signed(p, n) if x == "s32" else p, signed(q, n) if y == "s32" else q)
            if sat:
                low, high = (-(1 << n - 1), mask(n - 1)) if d == "s32" else (0, mask(n))
                r = max(low, min(high, r))
            word |= (r & mask(n)) << at
            sum_ += r
        return sum_ & mask(32) if total else word

    ops = []
    for name, f in operations.items():
        for n in (16, 8):
            for types in (("u32", "u32", "u32"), ("s32", "s32", "s32"), ("s32", "u32", "s32")):
                for suffix in ("", ".sat", ".add"):
                    code = f"{name}{32 // n}.{'.'.join(types)}{suffix} {{d}}, {{a}}, {{b}}, {{c}}"
                    function = lambda a, b, c, k=(f, n, types, suffix == ".sat", suffix == ".add"): apply(*k, a, b, c)
                    ops.append((code, "u32", function))
    write("video", [("u32", a), ("u32", b), ("u32", c)], ops)


def products():
    """`mma` and `wmma`. Elements are small integers, so that every sum is exact. Layouts are those of the PTX manual."""
    numbers = random.Random(7)

    def bits(value, ty):
        if ty in ("f16", "bf16", "f32", "f64"):
            return encode(Fraction(value), ty)
        if ty == "tf32":
            return encode(Fraction(value), "f32")
        return value & mask(width(ty))

    # Row and column of element i in lane 4 g + t, as the manual gives them for each shape.
    def result(g, t, i):
        return g + 8 * (i >= 2), 2 * t + (i & 1)
    layouts = {
        "m16n8k8.f16": (lambda g, t, i: (g + 8 * (i >= 2), 2 * t + (i & 1)), lambda g, t, i: (2 * t + i, g)),
        "m16n8k16.f16": (lambda g, t, i: (g + 8 * (i in (2, 3, 6, 7)), 2 * t + (i & 1) + 8 * (i >= 4)), lambda g, t, i: (2 * t + (i & 1) + 8 * (i >= 2), g)),
        "m16n8k16.bf16": (lambda g, t, i: (g + 8 * (i in (2, 3, 6, 7)), 2 * t + (i & 1) + 8 * (i >= 4)), lambda g, t, i: (2 * t + (i & 1) + 8 * (i >= 2), g)),
        "m16n8k4.tf32": (lambda g, t, i: (g + 8 * i, t), lambda g, t, i: (t, g)),
        "m16n8k8.tf32": (lambda g, t, i: (g + 8 * (i in (1, 3)), t + 4 * (i >= 2)), lambda g, t, i: (t + 4 * i, g)),
        "m8n8k16.s8": (lambda g, t, i: (g, 4 * t + i), lambda g, t, i: (4 * t + i, g)),
        "m16n8k16.u8": (lambda g, t, i: (g + 8 * (i >= 4), 4 * t + (i & 3)), lambda g, t, i: (4 * t + i, g)),
        "m16n8k32.s8": (lambda g, t, i: (g + 8 * (4 <= i < 8 or i >= 12), 4 * t + (i & 3) + 16 * (i >= 8)), lambda g, t, i: (4 * t + (i & 3) + 16 * (i >= 4), g)),
        "m8n8k4.f64": (lambda g, t, i: (g, t), lambda g, t, i: (t, g)),
        "m16n8k8.f64": (lambda g, t, i: (g + 8 * (i in (1, 3)), t + 4 * (i >= 2)), lambda g, t, i: (t + 4 * i, g)),
    }
    runs, kernels = [], []

    def random_matrix(rows, columns, ty):
        low = 0 if ty.startswith("u") else -4
        return [[numbers.randint(low, 4) for _ in range(columns)] for _ in range(rows)]

    def product(a, b, c):
        return [[c[r][n] + sum(x * b[k][n] for k, x in enumerate(a[r])) for n in range(len(c[0]))] for r in range(len(c))]

    def registers(matrix, place, count, ty):
        """What the lanes hold, packed into registers of 32 or 64 bits."""
        n, out = width(ty), []
        for lane in range(32):
            word = 0
            for i in range(count):
                r, c = place(lane // 4, lane % 4, i)
                word |= bits(matrix[r][c], ty) << n * i
            size = max(32, n)
            out += [word >> at & mask(size) for at in range(0, n * count, size)]
        return out

    def listed(values):
        return " ".join(f"0x{v:x}" for v in values)

    for name, (place_a, place_b) in layouts.items():
        shape, ty = name.split(".")
        m, n, k = (int(x) for x in re.findall(r"\d+", shape))
        wide = {"s8": "s32", "u8": "s32", "f64": "f64"}.get(ty, "f32")
        for total in ([wide, "f16"] if ty == "f16" else [wide]):
            a, b, c = random_matrix(m, k, ty), random_matrix(k, n, ty), random_matrix(m, n, "s8")
            kernel = f"{shape}_{ty}_{total}"
            parts = [(a, place_a, m * k // 32, ty), (b, place_b, k * n // 32, ty), (c, result, m * n // 32, total), (product(a, b, c), result, m * n // 32, total)]
            held = [registers(*part) for part in parts]
            word = "u64" if ty == "f64" else "u32"
            runs.append(f"//@ run kernel={kernel} block=32")
            runs += [f"//@ in {word} {listed(h)}" for h in held[:3]] + [f"//@ out {word} {listed(held[3])}"]
            size = 8 if ty == "f64" else 4
            kind, prefix = ("f64", "fd") if ty == "f64" else ("b32", "r")
            code, lists = [f".visible .entry {kernel}(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)", "{",
                           "\t.reg .b32 %r<64>;", "\t.reg .f64 %fd<64>;", "\t.reg .b64 %rd<8>;", "\tmov.u32 %r63, %tid.x;"], []
            for index, h in enumerate(held):
                each = len(h) // 32
                code += [f"\tld.param.u64 %rd0, [{'abcd'[index]}];", f"\tmul.wide.u32 %rd1, %r63, {each * size};", "\tadd.u64 %rd2, %rd0, %rd1;"]
                names = [f"%{prefix}{10 * index + j}" for j in range(each)]
                lists.append("{" + ", ".join(names) + "}")
                if index < 3:
                    code += [f"\tld.global.{kind} {r}, [%rd2+{j * size}];" for j, r in enumerate(names)]
            if ty == "f64":
                types = "f64.f64.f64.f64"
            else:
                types = f"{total}.{ty}.{ty}.{total}"
            code.append(f"\tmma.sync.aligned.{shape}.row.col.{types} {lists[3]}, {lists[0]}, {lists[1]}, {lists[2]};")
            code += [f"\tst.global.{kind} [%rd2+{j * size}], %{prefix}{30 + j};" for j in range(len(held[3]) // 32)]
            kernels.append("\n".join(code + ["\tret;", "}"]))
    whole = [("m16n16k16", "f16", "f32"), ("m32n8k16", "f16", "f16"), ("m8n32k16", "bf16", "f32"), ("m16n16k8", "tf32", "f32"), ("m16n16k16", "s8", "s32"), ("m32n8k16", "u8", "s32"), ("m8n8k4", "f64", "f64")]
    for number, (shape, ty, total) in enumerate(whole):
        m, n, k = (int(x) for x in re.findall(r"\d+", shape))
        orders = [("row", "col"), ("col", "row")][number % 2]
        a, b, c = random_matrix(m, k, ty), random_matrix(k, n, ty), random_matrix(m, n, "s8")

        def laid(matrix, order):
            lines = matrix if order == "row" else list(zip(*matrix))
            return [x for line in lines for x in line]
        memory_type = {"tf32": "f32", "s8": "u8", "u8": "u8", "s32": "u32"}
        kernel = f"whole_{shape}_{ty}_{total}"
        runs.append(f"//@ run kernel={kernel} block=32")
        for matrix, order, t in ((a, orders[0], ty), (b, orders[1], ty), (c, "row", total)):
            runs.append(f"//@ in {memory_type.get(t, t)} {listed(bits(v, t) for v in laid(matrix, order))}")
        runs.append(f"//@ out {memory_type.get(total, total)} {listed(bits(v, total) for v in laid(product(a, b, c), 'col'))}")
        count = {("m16n16k16", "f16"): (8, 8), ("m32n8k16", "f16"): (8, 8), ("m8n32k16", "bf16"): (2, 8), ("m16n16k8", "tf32"): (4, 4), ("m16n16k16", "s8"): (2, 2), ("m32n8k16", "u8"): (4, 1), ("m8n8k4", "f64"): (1, 1)}[(shape, ty)]
        sums = 2 if ty == "f64" else 4 if total == "f16" else 8
        prefix = {"f64": "fd"}.get(ty, "r")
        end = {"f64": "fd", "f32": "f"}.get(total, "r")
        ra, rb = ("{" + ", ".join(f"%{prefix}{base + j}" for j in range(many)) + "}" for base, many in ((0, count[0]), (10, count[1])))
        rc, rd = ("{" + ", ".join(f"%{end}{base + j}" for j in range(sums)) + "}" for base in (20, 30))
        strides = [k if orders[0] == "row" else m, n if orders[1] == "row" else k]
        types = {"f16": f"{total}.{total}", "f64": "f64.f64.f64.f64"}.get(ty, f"{total}.{ty}.{ty}.{total}")
        code = [f".visible .entry {kernel}(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)", "{", "\t.reg .b32 %r<64>;", "\t.reg .f32 %f<64>;", "\t.reg .f64 %fd<64>;", "\t.reg .b64 %rd<8>;"]
        code += [f"\tld.param.u64 %rd{j}, [{'abcd'[j]}];" for j in range(4)]
        code += [f"\tmov.u32 %r60, {strides[0]};", f"\tmov.u32 %r61, {strides[1]};"]
        code.append(f"\twmma.load.a.sync.aligned.{orders[0]}.{shape}.global.{ty} {ra}, [%rd0], %r60;")
        code.append(f"\twmma.load.b.sync.aligned.{orders[1]}.{shape}.global.{ty} {rb}, [%rd1], %r61;")
        code.append(f"\twmma.load.c.sync.aligned.row.{shape}.global.{total} {rc}, [%rd2];")
        code.append(f"\twmma.mma.sync.aligned.{orders[0]}.{orders[1]}.{shape}.{types} {rd}, {ra}, {rb}, {rc};")
        code.append(f"\twmma.store.d.sync.aligned.col.{shape}.global.{total} [%rd3], {rd};")
        kernels.append("\n".join(code + ["\tret;", "}"]))
    head = "// Written by generate.py.\n.version 8.0\n.target sm_90\n.address_size 64\n"
    with open(os.path.join(HERE, "gen-products.ptx"), "w") as file:
        file.write("\n".join(runs) + "\n" + head + "\n".join(kernels) + "\n")


for make in (integers, shifts, fields, floats, halves, conversions, comparisons, approximations, videos, products):
    make()
