#!/usr/bin/env python3
"""hf-xet against its store in a directory: xet.py up DIR STORE LIST | down LIST DIR STORE. LIST keeps what the hub's repository would."""
import json, os, sys

import hf_xet

A_CALL = 1000


def up(tree, store, list_file):
    files = sorted(os.path.join(base, name) for base, _, names in os.walk(tree) for name in names)
    kept = []
    for at in range(0, len(files), A_CALL):
        part = files[at:at + A_CALL]
        done = hf_xet.upload_files(part, "local://" + store, None, None, None, None, skip_sha256=True)
        kept += [(os.path.relpath(path, tree), info.hash, info.file_size) for path, info in zip(part, done)]
    with open(list_file, "w") as file:
        json.dump(kept, file)


def down(list_file, tree, store):
    with open(list_file) as file:
        kept = json.load(file)
    for folder in {os.path.dirname(os.path.join(tree, path)) for path, _, _ in kept}:
        os.makedirs(folder, exist_ok=True)
    for at in range(0, len(kept), A_CALL):
        part = [hf_xet.PyXetDownloadInfo(os.path.join(tree, path), digest, size) for path, digest, size in kept[at:at + A_CALL]]
        hf_xet.download_files(part, "local://" + store, None, None, None)


{"up": up, "down": down}[sys.argv[1]](*sys.argv[2:])
