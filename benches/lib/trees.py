"""Cuts of the corpora, and the trees of `--scale`. All deterministic."""
import os, random, shutil, subprocess, zlib
from .measure import size_of

# Pairs of one clip before and after its edit that share their beginning, for a cut of the footage.
HEADS = [
    ("A001_C001.mp4", "A001_C001.mp4"), ("A002_C001.mp4", "A002_C001_fs.mp4"), ("A002_C002.mov", "A002_C002.mkv"),
    ("B001_C001.mp4", "B001_C001_concat.mp4"),
]


def parse_size(text):
    scale = {"K": 2 ** 10, "M": 2 ** 20, "G": 2 ** 30}.get(text[-1:].upper())
    return int(text[:-1]) * scale if scale else int(text)


def head(source, target, size):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as file, open(target, "wb") as out:
        while size > 0 and (part := file.read(min(size, 1 << 20))):
            out.write(part)
            size -= len(part)


def cut(name, v1, v2, size, target):
    """About `size` bytes of v1, and what belongs to it of v2. Of footage the beginnings of four clips, of a dataset a sample of the files."""
    shutil.rmtree(target, ignore_errors=True)
    pair = [os.path.join(target, version) for version in ("v1", "v2")]
    if name == "footage":
        for old, new in HEADS:
            head(os.path.join(v1, old), os.path.join(pair[0], old), size // len(HEADS))
            head(os.path.join(v2, new), os.path.join(pair[1], new), size // len(HEADS))
        return pair
    share = min(1.0, size / size_of(v1)[0])
    for source, version in zip((v1, v2), pair):
        for base, _, files in os.walk(source):
            for file in files:
                path = os.path.relpath(os.path.join(base, file), source)
                if zlib.crc32(path.encode()) < share * 2 ** 32:
                    os.makedirs(os.path.dirname(os.path.join(version, path)), exist_ok=True)
                    shutil.copyfile(os.path.join(source, path), os.path.join(version, path))
    return pair


def keystream(path, size, key):
    """Bytes that neither compress nor repeat, at the speed of the disk."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    command = f"openssl enc -aes-128-ctr -K {key:032x} -iv {0:032x} -in /dev/zero 2>/dev/null | head -c {int(size)} > {path}"
    subprocess.run(["bash", "-c", command], check=True)
    assert os.path.getsize(path) == size, path


def small_files(target, count, seed=7):
    """Files of 200 to 2,000 bytes, 500 in a directory."""
    numbers = random.Random(seed)
    for i in range(count):
        if i % 500 == 0:
            os.makedirs(f"{target}/{i // 500:04d}")
        with open(f"{target}/{i // 500:04d}/{i:07d}.bin", "wb") as file:
            file.write(numbers.randbytes(numbers.randint(200, 2000)))
