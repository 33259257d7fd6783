"""Searches every file that it can read for git objects, packs and packed references."""

from attack import Attack, python, tried

ATTACK = Attack(
    (
        tried(
            python(
                """
import os, re, zlib
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if folder != "/" or name not in ("dev", "proc", "usr")]
    for name in names:
        path = os.path.join(folder, name)
        if name in ("packed-refs", "ORIG_HEAD", "FETCH_HEAD") or name.endswith((".pack", ".idx", ".bundle")):
            print("GAINED", path)
        try:
            data = open(path, "rb").read(100)
        except OSError:
            continue
        if data[:4] == b"PACK" or data[:2] in (b"x\\x01", b"x\\x9c"):
            try:
                if re.match(rb"(blob|tree|commit) ", zlib.decompressobj().decompress(data)):
                    print("GAINED", path)
            except zlib.error:
                pass
"""
            )
        ),
    )
)
