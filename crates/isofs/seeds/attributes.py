"""Gives the files of an image extended attribute records, which no writer makes: attributes.py IMAGE

Each file moves to the end of the image, behind its record; both trees of the image show the same ones."""

import struct
import sys

SECTOR = 2048
PROTECTED = 0x10


def both16(number):
    return struct.pack("<H", number) + struct.pack(">H", number)


def both32(number):
    return struct.pack("<I", number) + struct.pack(">I", number)


def record(number):
    """Each file another: permissions, a wrong version, a time that is none."""
    permissions = 0xFFFF & ~(1 << 4 + 2 * (number % 6))
    modified = b"2001 102000000000" if number % 4 == 3 else b"20010102%02d0000000" % number
    head = both16(7) + both16(9) + struct.pack(">H", permissions) + b"2001010100000000\0"
    version = 2 if number % 5 == 4 else 1
    return (head + modified[:16] + b"\x04").ljust(180, b"\0") + bytes([version])


class Image:
    def __init__(self, content):
        self.content = bytearray(content)
        self.moved = {}

    def descriptors(self):
        at = 16 * SECTOR
        while self.content[at] != 255:
            if self.content[at] in (1, 2):
                yield at
            at += SECTOR

    def directory(self, block, size):
        at = block * SECTOR
        end = at + size
        while at < end:
            length = self.content[at]
            if length == 0:
                at = (at // SECTOR + 1) * SECTOR
                continue
            identifier = self.content[at + 33 : at + 33 + self.content[at + 32]]
            (extent,) = struct.unpack_from("<I", self.content, at + 2)
            (size,) = struct.unpack_from("<I", self.content, at + 10)
            if not self.content[at + 25] & 2:
                self.file(at, extent, size)
            elif identifier not in (b"\0", b"\1"):
                self.directory(extent, size)
            at += length

    def file(self, at, extent, size):
        number, to = self.moved.get((extent, size), (len(self.moved), len(self.content) // SECTOR))
        if (extent, size) not in self.moved:
            self.moved[extent, size] = number, to
            start = extent * SECTOR
            self.content += record(number).ljust(SECTOR, b"\0")
            self.content += self.content[start : start + size]
            self.content += bytes(-len(self.content) % SECTOR)
        self.content[at + 1] = 1
        self.content[at + 2 : at + 10] = both32(to)
        self.content[at + 25] |= 0 if number % 7 == 6 else PROTECTED

    def add(self):
        for at in self.descriptors():
            (block,) = struct.unpack_from("<I", self.content, at + 158)
            (size,) = struct.unpack_from("<I", self.content, at + 166)
            self.directory(block, size)
        for at in self.descriptors():
            self.content[at + 80 : at + 88] = both32(len(self.content) // SECTOR)


with open(sys.argv[1], "rb") as file:
    image = Image(file.read())
image.add()
with open(sys.argv[1], "wb") as file:
    file.write(image.content)
