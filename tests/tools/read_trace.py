#!/usr/bin/env python3
"""Prints the records of a trace as JSON lines. Written from docs/trace-format.md alone, without the project's code.

    read_trace.py FILE [--hmac-key KEYFILE] [--encrypt-key KEYFILE]

Needs the program zstd for compressed traces, and the module cryptography for encrypted ones. Exits 1 when the trace is damaged.
"""
import argparse
import hashlib
import hmac
import json
import struct
import subprocess
import sys

FILE_MAGIC, SYNC = b"\x89GTR\r\n\x1a\n", bytes.fromhex("f3475452b10c9de7")
SCHEMA, CONTEXT, RECORDS, END, COLUMNS = 1, 2, 3, 4, 5
U64 = (1 << 64) - 1

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Bytes:
    """Reads fields in order."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise ValueError("the bytes end early")
        self.at += count
        return self.data[self.at - count:self.at]

    def u8(self):
        return self.take(1)[0]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def text(self):
        return self.take(self.varint())

    def name(self):
        return self.text().decode()

    def list(self, read):
        return [read(Bytes(self.text())) for _ in range(self.varint())]


class Schema:
    def __init__(self, payload):
        data = Bytes(payload)
        self.symbols = data.list(lambda one: {
            "name": one.name(), "bits": one.u8(), "field": one.varint(),
            "values": [(one.varint(), one.name()) for _ in range(one.varint())]})
        self.arguments = data.list(lambda one: {
            "name": one.name(), "type": one.u8(), "size": one.u8(), "unit": one.name(),
            "role": one.name(), "symbols": one.varint(), "cell": one.varint()})
        messages = data.list(lambda one: {
            "id": one.varint(), "name": one.name(), "number": one.varint() - 1,
            "arguments": [self.arguments[one.varint()] for _ in range(one.varint())]})
        self.messages = {one["id"]: one for one in messages}


class Records:
    """The records of one block. What elision needs lives as long as this object."""

    def __init__(self, schema, payload, has_columns=False):
        self.schema, self.data, self.columns = schema, Bytes(payload), None
        if has_columns:
            bodies, count = self.data.varint(), self.data.varint()
            lengths = [(self.data.varint(), self.data.varint()) for _ in range(count)]
            bodies = self.data.take(bodies)
            self.columns = {cell: Bytes(self.data.take(length)) for cell, length in lengths}
            self.data = Bytes(bodies)
        self.shapes, self.table, self.lanes, self.lane = [], [], [{}], 0

    def __iter__(self):
        while self.data.at < len(self.data.data):
            record = self.record(self.data if self.columns is not None else Bytes(self.data.text()))
            if record:
                yield record

    def record(self, body):
        number = body.varint()
        if number == 0:
            coded = body.varint()
            message = self.schema.messages.get(coded >> 1)
            count = len(message["arguments"]) if message else 0
            packed = body.take((count + 1) // 2)
            codes = [half for byte in packed for half in (byte & 15, byte >> 4)][:count]
            shape = message, coded & 1, codes
            if len(self.shapes) < 4096:
                self.shapes.append(shape)
        else:
            shape = self.shapes[number - 1]
        message, has_lane, codes = shape
        if has_lane:
            lane = body.u8()
            if lane == len(self.lanes):
                self.lanes.append({cell: list(held) for cell, held in self.lanes[self.lane].items()})
            self.lane = lane
        if message is None:
            return None
        record, earlier = {"message": message["name"]}, {}
        for argument, code in zip(message["arguments"], codes):
            column = body if self.columns is None else self.columns.get(argument["cell"], Bytes(b""))
            value = self.field(argument, code, column, earlier)
            if code != 0:
                record[argument["name"]] = value
        return record

    def field(self, argument, code, body, earlier):
        if code in (0, 8):
            return None
        if code == 9:
            return {"unread": body.varint()}
        if argument["type"] == 4:
            return body.text().hex()
        # A cell holds a number, a difference, and a string.
        cell = self.lanes[self.lane].setdefault(argument["cell"], [0, 0, b""])
        if argument["type"] == 3:
            return self.string(cell, code, body, earlier).decode("latin-1")
        number = self.number(cell, code, body, earlier, argument)
        if code != 2:
            cell[0], cell[1] = number, number - cell[0] & U64
        earlier["number"] = number
        return number - (1 << 64) if argument["type"] == 2 and number >> 63 else number

    @staticmethod
    def number(cell, code, body, earlier, argument):
        if code == 1:
            return int.from_bytes(body.take(argument["size"]), "little", signed=argument["type"] == 2) & U64
        if code == 2:
            return cell[0]
        if code == 3:
            coded = body.varint()
            return cell[0] + (-(coded >> 1) - 1 if coded & 1 else coded >> 1) & U64
        if code == 4:
            return cell[0] + cell[1] & U64
        if code == 7:
            return earlier["number"]
        raise ValueError(f"code {code} for a number")

    def string(self, cell, code, body, earlier):
        in_table = True
        if code == 1:
            value, in_table = body.text(), False
        elif code == 2:
            value = cell[2]
        elif code == 5:
            value = self.table[-1 - body.varint()]
        elif code == 6:
            value = cell[2][:body.varint()] + body.text()
            self.table.append(value)
        elif code == 10:
            value = cell[2][:body.varint()] + earlier["string"][0]
            self.table.append(value)
        elif code == 7:
            value, in_table = earlier["string"]
        else:
            raise ValueError(f"code {code} for a string")
        if in_table:
            cell[2] = value
        earlier["string"] = value, in_table
        return value


class Trace:
    def __init__(self, data, hmac_key, encrypt_key):
        self.data, self.at, self.keys, self.schemas = data, 32, {2: encrypt_key, 3: hmac_key}, {}
        if data[:8] != FILE_MAGIC:
            raise ValueError("this is no trace")
        if struct.unpack_from("<H", data, 8)[0] != 1:
            raise ValueError("the trace has another version")
        if crc32c(data[:28]) != struct.unpack_from("<I", data, 28)[0]:
            raise ValueError("the file header is damaged")
        self.serial, self.next = data[12:28], None

    def blocks(self):
        while self.data[self.at:self.at + 8] == SYNC:
            header = self.data[self.at:self.at + 100]
            kind, raw_len, codecs, serial, sequence = struct.unpack_from("<B3xI8s16sQ", header, 8)
            stored_len, payload_crc, header_crc = struct.unpack_from("<III", header, 88)
            if crc32c(header[8:96]) != header_crc or serial != self.serial:
                raise ValueError(f"a block header at byte {self.at} is damaged")
            stored = self.data[self.at + 100:self.at + 100 + stored_len]
            if len(stored) != stored_len or crc32c(stored) != payload_crc:
                raise ValueError(f"block {sequence} is damaged")
            if self.next is not None and sequence != self.next:
                raise ValueError(f"block {sequence} stands where block {self.next} should")
            self.next = sequence + 1
            self.at += 100 + stored_len
            for position, codec in reversed(list(enumerate(codecs.rstrip(b"\0")))):
                stored = self.undo(codec, position, header[8:88], sequence, stored, raw_len)
            if len(stored) != raw_len:
                raise ValueError(f"block {sequence} has another length than it says")
            yield kind, struct.unpack_from("<I", header, 60)[0], stored

    def undo(self, codec, position, identity, sequence, stored, raw_len):
        if codec == 1:
            return subprocess.run(["zstd", "-dcq"], input=stored, stdout=subprocess.PIPE, check=True).stdout
        purpose = {2: b"goanna-trace encrypt", 3: b"goanna-trace authenticate"}[codec]
        key = self.keys[codec] and hmac.digest(self.keys[codec], purpose + self.serial, hashlib.sha256)
        if codec == 2:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            return AESGCM(key).decrypt(struct.pack("<QI", sequence, position), stored, identity)
        stored, tag = stored[:-32], stored[-32:]
        covered = identity + struct.pack("<I", position) + stored
        if key and not hmac.compare_digest(tag, hmac.digest(key, covered, hashlib.sha256)):
            raise ValueError(f"block {sequence} does not verify")
        return stored

    def records(self):
        ended = False
        for kind, schema_id, payload in self.blocks():
            if kind == SCHEMA:
                self.schemas[crc32c(payload)] = Schema(payload)
            elif kind in (RECORDS, COLUMNS):
                yield from Records(self.schemas[schema_id], payload, kind == COLUMNS)
            ended = kind == END
        if not ended:
            raise ValueError("the trace has no end")


def read_key(path):
    if path is None:
        return None
    with open(path, "rb") as file:
        raw = file.read()
    return raw if len(raw) == 32 else bytes.fromhex(raw.decode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--hmac-key")
    parser.add_argument("--encrypt-key")
    options = parser.parse_args()
    with open(options.file, "rb") as file:
        data = file.read()
    try:
        for record in Trace(data, read_key(options.hmac_key), read_key(options.encrypt_key)).records():
            print(json.dumps(record))
    except ValueError as error:
        sys.exit(f"{options.file}: {error}")


if __name__ == "__main__":
    main()
