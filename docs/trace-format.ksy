meta:
  id: goanna_trace
  title: Trace of goanna-trace, version 1
  file-extension: gtr
  endian: le
  imports:
    - /common/vlq_base128_le
doc: |
  The outer layers of a trace: file header, blocks, and the payloads of schema, context and end blocks that went through no codec.
  docs/trace-format.md describes the records.
doc-ref: docs/trace-format.md
seq:
  - id: header
    type: file_header
  - id: blocks
    type: block
    repeat: until
    repeat-until: _.kind == block_kind::end
  - id: index
    type: footer
    if: not _io.eof
enums:
  block_kind:
    1: schema
    2: context
    3: records
    4: end
    5: columns
  codec:
    0: none
    1: zstd
    2: aes_256_gcm
    3: hmac_sha_256
  argument_type:
    1: unsigned
    2: signed
    3: byte_string
    4: data
types:
  file_header:
    seq:
      - id: magic
        contents: [0x89, "GTR", 0x0d, 0x0a, 0x1a, 0x0a]
      - id: major
        type: u2
      - id: minor
        type: u2
      - id: serial
        size: 16
      - id: checksum
        type: u4
  block:
    seq:
      - id: sync
        contents: [0xf3, "GTR", 0xb1, 0x0c, 0x9d, 0xe7]
      - id: kind
        type: u1
        enum: block_kind
      - id: zero
        contents: [0, 0, 0]
      - id: raw_len
        type: u4
      - id: codecs
        type: u1
        enum: codec
        repeat: expr
        repeat-expr: 8
      - id: serial
        size: 16
      - id: sequence
        type: u8
      - id: records_before
        type: u8
      - id: records
        type: u4
      - id: schema_id
        type: u4
      - id: first_ns
        type: u8
      - id: last_ns
        type: u8
      - id: lost
        type: u8
      - id: stored_len
        type: u4
      - id: payload_checksum
        type: u4
      - id: header_checksum
        type: u4
      - id: payload
        size: stored_len
    instances:
      is_plain:
        value: codecs[0] == codec::none
  text:
    seq:
      - id: len
        type: vlq_base128_le
      - id: value
        size: len.value
  pairs:
    seq:
      - id: count
        type: vlq_base128_le
      - id: pairs
        type: pair
        repeat: expr
        repeat-expr: count.value
  pair:
    seq:
      - id: name
        type: text
      - id: value
        type: text
  footer:
    seq:
      - id: magic
        contents: "GTRINDEX"
      - id: len
        type: u4
      - id: entries
        size: len
        type: entries
      - id: checksum
        type: u4
      - id: offset
        type: u8
      - id: end_magic
        contents: ["GTR-END", 0x0a]
  entries:
    seq:
      - id: entries
        type: entry
        repeat: eos
  entry:
    seq:
      - id: kind
        type: u1
        enum: block_kind
      - id: offset_difference
        type: vlq_base128_le
      - id: sequence_difference
        type: vlq_base128_le
      - id: first_ns_difference
        type: vlq_base128_le
