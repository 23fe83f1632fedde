#!/usr/bin/env python3
# dataset corpus: ~50k small files, ~1 GiB, v1 + v2 (3% changed, 2% new, 1% removed). Deterministic.
# usage: gen_dataset.py DEST
import os, sys, json, zlib, struct, random, glob
import numpy as np
D = sys.argv[1] if len(sys.argv) > 1 else "target/bench/corpora/dataset"
rng = np.random.default_rng(7); R = random.Random(7)
# real text: source and docs on this machine
src = []
tot = 0
for pat in ("/usr/share/doc/**/*", "/usr/lib/python3*/**/*.py", os.path.join(sys.prefix, "lib/python3*/**/*.py")):
    for f in sorted(glob.glob(pat, recursive=True)):
        if os.path.isfile(f) and not os.path.islink(f) and not f.endswith((".gz", ".png")):
            try: b = open(f, "rb").read(200_000)
            except OSError: continue
            src.append(b); tot += len(b)
            if tot > 160 << 20: break
text = b"".join(src)
words = sorted({w.decode("ascii", "ignore") for w in text[:20_000_000].split() if 3 < len(w) < 14 and w.isalpha()})
def png(i, n):
    x = np.cumsum(np.cumsum(rng.normal(0, 1.2, (n, n, 3)), 0) * .3, 1)
    a = (128 + 40 * np.sin(x / 9) + rng.normal(0, 6, (n, n, 3))).clip(0, 255).astype(np.uint8)
    raw = b"".join(b"\x00" + a[r].tobytes() for r in range(n))
    ch = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
    return b"\x89PNG\r\n\x1a\n" + ch(b"IHDR", struct.pack(">IIBBBBB", n, n, 8, 2, 0, 0, 0)) + ch(b"IDAT", zlib.compress(raw, 1)) + ch(b"IEND", b"")
def js(i):
    k = R.randint(20, 160)
    return json.dumps({"image_id": i, "file_name": f"img/{i//1000:03d}/{i:06d}.png", "license": 4, "caption": " ".join(R.choices(words, k=24)),
      "annotations": [{"id": i * 1000 + j, "category_id": R.randint(1, 90), "iscrowd": 0, "bbox": [round(R.uniform(0, 640), 2) for _ in range(4)], "area": round(R.uniform(10, 90000), 3),
        "segmentation": [round(R.uniform(0, 640), 1) for _ in range(R.randint(4, 12))]} for j in range(k)]}, indent=1).encode()
def txt(i):
    n = R.randint(2_000, 40_000); o = R.randrange(max(1, len(text) - n)); return text[o:o + n]
def npy(i):
    return b"\x93NUMPY\x01\x00" + rng.normal(0, 1, R.randint(1000, 9000)).astype(np.float32).tobytes()
def put(v, rel, b):
    p = f"{D}/{v}/{rel}"; os.makedirs(os.path.dirname(p), exist_ok=True); open(p, "wb").write(b)
n = 0
for i in range(50_000):
    k = i % 10
    if k < 4:   rel, b = f"ann/{i//1000:03d}/{i:06d}.json", js(i)
    elif k < 6: rel, b = f"text/{i//1000:03d}/{i:06d}.txt", txt(i)
    elif k < 9: rel, b = f"img/{i//1000:03d}/{i:06d}.png", png(i, R.choice((96, 112, 128, 144)))
    else:       rel, b = f"feat/{i//1000:03d}/{i:06d}.npy", npy(i)
    put("v1", rel, b); n += len(b)
    u = R.random()
    if u < .01: pass                                             # removed in v2
    elif u < .04: h = len(b) // 2; put("v2", rel, b[:h] + rng.bytes(100) + b[h:])   # changed
    else: put("v2", rel, b)
    if R.random() < .02: put("v2", f"new/{i:06d}.json", js(i + 10**6))
print("bytes", n)
