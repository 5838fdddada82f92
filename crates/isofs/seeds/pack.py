"""Packs an image into a fuzzer's input, as seed.rs describes it: pack.py IMAGE > SEED"""

import struct
import sys

SECTOR = 2048

with open(sys.argv[1], "rb") as file:
    image = file.read()
sectors = (len(image) + SECTOR - 1) // SECTOR
packed = struct.pack("<H", sectors)
for sector in range(sectors):
    used = image[sector * SECTOR : (sector + 1) * SECTOR].rstrip(b"\0")
    if used:
        packed += struct.pack("<HH", sector, len(used)) + used
sys.stdout.buffer.write(packed)
