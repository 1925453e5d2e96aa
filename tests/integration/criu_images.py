# SPDX-License-Identifier: MIT
"""CRIU's image files, changed: two magic numbers, then messages, each behind its length."""

HEAD_BYTES = 8


def read_number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def fields_of(message):
    """[(field, wire type, value)] of a message of protocol buffers."""
    fields, at = [], 0
    while at < len(message):
        key, at = read_number(message, at)
        wire = key & 7
        if wire == 0:
            value, at = read_number(message, at)
        else:
            length, at = read_number(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = message[at:at + length], at + length
        fields.append((key >> 3, wire, value))
    return fields


def message_of(fields):
    out = b""
    for field, wire, value in fields:
        out += number(field << 3 | wire)
        out += number(value) if wire == 0 else (number(len(value)) if wire == 2 else b"") + value
    return out


def changed(message, path, change):
    """The message with the fields of the message at this path of field numbers changed."""
    if not path:
        return message_of(change(fields_of(message)))
    return message_of([(field, wire, changed(value, path[1:], change) if field == path[0] else value)
                       for field, wire, value in fields_of(message)])


def entries_of(data):
    """The messages of an image."""
    at, entries = HEAD_BYTES, []
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "little")
        entries.append(data[at + 4:at + 4 + length])
        at += 4 + length
    return entries


def write_entries(path, head, entries):
    with open(path, "wb") as file:
        file.write(head + b"".join(len(entry).to_bytes(4, "little") + entry for entry in entries))


def change_image(path, where, change, which=lambda fields: True):
    """Changes the first message of an image file of which which(its fields) is true."""
    with open(path, "rb") as file:
        data = file.read()
    entries = entries_of(data)
    i = next(i for i, entry in enumerate(entries) if which(fields_of(entry)))
    entries[i] = changed(entries[i], where, change)
    write_entries(path, data[:HEAD_BYTES], entries)


def change_credentials(path, change):
    """Of the thread of a core image: its fields in CRIU's images/creds.proto."""
    change_image(path, [5, 10], change)
