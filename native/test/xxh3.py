"""XXH3-64 in plain Python, after its specification."""

from __future__ import annotations

U32, U64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
P1 = 0x9E3779B185EBCA87
P2 = 0xC2B2AE3D27D4EB4F
P3 = 0x165667B19E3779F9
P4 = 0x85EBCA77C2B2AE63
P5 = 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & U64) ^ product >> 64


def _avalanche(x: int) -> int:
    x = (x ^ x >> 37) * 0x165667919E3779F9 & U64
    return x ^ x >> 32


def _avalanche_64(x: int) -> int:
    x = (x ^ x >> 33) * P2 & U64
    x = (x ^ x >> 29) * P3 & U64
    return x ^ x >> 32


def _swap(x: int) -> int:
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def _mix(data: bytes, at: int, secret: int, seed: int) -> int:
    low = _word(data, at) ^ (_word(SECRET, secret) + seed & U64)
    high = _word(data, at + 8) ^ (_word(SECRET, secret + 8) - seed & U64)
    return _fold(low, high)


def xxh3(data: bytes, seed: int = 0) -> int:
    """A seed is supported for inputs of 17 to 128 bytes: table entries."""
    n = len(data)
    if n == 0:
        return _avalanche_64(_word(SECRET, 56) ^ _word(SECRET, 64))
    if n <= 3:
        combined = data[0] << 16 | data[n >> 1] << 24 | data[-1] | n << 8
        flip = int.from_bytes(SECRET[:4], "little") ^ int.from_bytes(SECRET[4:8], "little")
        return _avalanche_64(combined ^ flip)
    if n <= 8:
        first, last = int.from_bytes(data[:4], "little"), int.from_bytes(data[-4:], "little")
        x = (_word(SECRET, 8) ^ _word(SECRET, 16)) ^ (last + (first << 32))
        x ^= (x << 49 | x >> 15) & U64 ^ (x << 24 | x >> 40) & U64
        x = x * 0x9FB21C651E98DF25 & U64
        x ^= (x >> 35) + n
        x = x * 0x9FB21C651E98DF25 & U64
        return x ^ x >> 28
    if n <= 16:
        low = (_word(SECRET, 24) ^ _word(SECRET, 32)) ^ _word(data, 0)
        high = (_word(SECRET, 40) ^ _word(SECRET, 48)) ^ _word(data, n - 8)
        return _avalanche(n + _swap(low) + high + _fold(low, high) & U64)
    if n <= 128:
        total = n * P1
        for i in range((n - 1) // 32 + 1):
            total += _mix(data, 16 * i, 32 * i, seed) + _mix(
                data, n - 16 * (i + 1), 32 * i + 16, seed
            )
        return _avalanche(total & U64)
    if n <= 240:
        total = n * P1 + sum(_mix(data, 16 * i, 16 * i, 0) for i in range(8))
        total = _avalanche(total & U64)
        total += sum(_mix(data, 16 * i, 16 * (i - 8) + 3, 0) for i in range(8, n // 16))
        return _avalanche(total + _mix(data, n - 16, 136 - 17, 0) & U64)
    lanes = [0xC2B2AE3D, P1, P2, P3, P4, 0x85EBCA77, P5, 0x9E3779B1]

    def accumulate(at: int, secret: int) -> None:
        for lane in range(8):
            value = _word(data, at + 8 * lane)
            key = value ^ _word(SECRET, secret + 8 * lane)
            lanes[lane ^ 1] = lanes[lane ^ 1] + value & U64
            lanes[lane] = lanes[lane] + (key & U32) * (key >> 32) & U64

    blocks = (n - 1) // 1024
    for stripe in range((n - 1) // 64):
        accumulate(64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15 and stripe // 16 < blocks:
            for lane in range(8):
                mixed = lanes[lane] ^ lanes[lane] >> 47 ^ _word(SECRET, 128 + 8 * lane)
                lanes[lane] = mixed * 0x9E3779B1 & U64
    accumulate(n - 64, 192 - 64 - 7)
    total = n * P1
    for i in range(0, 8, 2):
        total += _fold(
            lanes[i] ^ _word(SECRET, 11 + 8 * i), lanes[i + 1] ^ _word(SECRET, 19 + 8 * i)
        )
    return _avalanche(total & U64)
