#!/usr/bin/env python3
"""Measures Dray and its peers on the same corpora in one run, as whole processes.

    benches/peers.py [--bin target/release/dray] [--work target/bench] [--runs 5] [--only REGEX] [--peers cp,borg,s5cmd,aws] [--json FILE]

Needs the corpora (benches/corpora/footage.sh with ffmpeg, benches/corpora/dataset.py with numpy). Prints one table: CPU seconds (user +
system, children included) per GiB of raw data for the client and, apart, for the service; wall seconds; peak RSS of each; files per second; bytes
stored or sent. Medians. Sources are read once before each run, so that they lie in the page cache; trees are renamed away, not deleted, between runs,
since ext4 makes creations dear for minutes after many deletions. Judge by CPU and by ratios of the same run: walls move with the neighbours.
"""
import argparse, json, os, re, shutil, signal, socket, statistics, subprocess, sys, time

GIB = 2.0 ** 30
arg = argparse.ArgumentParser()
arg.add_argument("--bin", default="target/release/dray")
arg.add_argument("--work", default="target/bench")
arg.add_argument("--runs", type=int, default=5)
arg.add_argument("--only", default=".")
arg.add_argument("--peers", default="cp,borg,s5cmd,aws")
arg.add_argument("--json")
arg.add_argument("--scale", action="store_true", help="also 300,000 files, one 8 GiB file, and 8 pushes at once")
opt = arg.parse_args()
DRAY = os.path.abspath(opt.bin)
WORK = os.path.abspath(opt.work)
CORPORA = os.path.join(WORK, "corpora")
SCRATCH = os.path.join(WORK, "scratch")
os.makedirs(SCRATCH, exist_ok=True)
PEERS = [p for p in opt.peers.split(",") if p and shutil.which(p)]
TICK = os.sysconf("SC_CLK_TCK")
rows = []


def size_of(path):
    count = total = 0
    for base, _, files in os.walk(path):
        for name in files:
            count += 1
            total += os.lstat(os.path.join(base, name)).st_size
    return total, count


def warm(path):
    subprocess.run(f"find {path} -type f -print0 | xargs -0 cat > /dev/null", shell=True, check=True)


def park(path):
    """Out of the way without deleting: ext4 skips recently deleted inodes for minutes."""
    if os.path.lexists(path):
        trash = os.path.join(WORK, "trash", str(time.monotonic_ns()))
        os.makedirs(trash)
        os.rename(path, os.path.join(trash, "x"))


def proc_cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def proc_peak(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0


def run(command, env=None, watch=()):
    """One whole process: wall, CPU, peak RSS, stdout, and the CPU that the watched pids used meanwhile."""
    out = open(os.path.join(SCRATCH, "out"), "w+b")
    err = open(os.path.join(SCRATCH, "err"), "w+b")
    before = [proc_cpu(p) for p in watch]
    os.sync()
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=out, stderr=err, env=env, shell=isinstance(command, str))
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    out.seek(0)
    err.seek(0)
    if child.returncode != 0:
        sys.exit(f"failed ({child.returncode}): {command}\n{err.read().decode(errors='replace')[-2000:]}")
    return {
        "wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024,
        "watched": [proc_cpu(p) - b for p, b in zip(watch, before)], "out": out.read(),
    }


class Service:
    """`dray serve` on a fresh data directory, loopback, local store."""

    def __init__(self, name):
        self.data = os.path.join(SCRATCH, name)
        park(self.data)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.log = open(os.path.join(SCRATCH, name + ".log"), "wb")
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([DRAY, "serve", "--data", self.data, "--listen", f"127.0.0.1:{port}"], stdout=self.log, stderr=self.log)
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if self.process.poll() is not None:
                    sys.exit("the service ended; see " + self.log.name)
                time.sleep(0.05)
        self.token = open(os.path.join(self.data, "admin.token")).read().strip()
        self.pid = self.process.pid

    def env(self, cache):
        return dict(os.environ, DRAY_URL=self.url, DRAY_TOKEN=self.token, XDG_CACHE_HOME=cache)

    def stored(self):
        return size_of(os.path.join(self.data, "store"))[0]

    def peak(self):
        return proc_peak(self.pid)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def record(name, raw, files, runs, note="", watched_name="service", peak=None):
    med = lambda f: statistics.median(f(r) for r in runs)
    row = {
        "name": name, "runs": len(runs), "cpu": med(lambda r: r["cpu"]) / (raw / GIB), "cpu_s": med(lambda r: r["cpu"]),
        "watched": med(lambda r: sum(r["watched"])) / (raw / GIB), "wall": med(lambda r: r["wall"]), "rss": max(r["rss"] for r in runs),
        "peak": peak or 0, "files_s": files / med(lambda r: r["wall"]), "note": note,
    }
    rows.append(row)
    print(f"| {name} | {row['cpu']:.2f} | {row['watched']:.2f} | {row['wall']:.2f} | {row['files_s']:.0f} | {row['rss']:.0f} | {row['peak']:.0f} | {note} |", flush=True)


def wanted(name):
    return re.search(opt.only, name)


def dray(corpus, v1, v2):
    (raw1, files1), (raw2, files2) = size_of(v1), size_of(v2)
    pushes, seconds, again, nocache, pulls, note, note2, requests = [], [], [], [], [], "", "", 0
    peak = 0
    for n in range(opt.runs):
        service = Service(f"{corpus}-data")
        cache = os.path.join(SCRATCH, "cache")
        park(cache)
        env = service.env(cache)
        warm(v1)
        push = run([DRAY, "push", v1, "--to", "bench/a", "--json"], env, [service.pid])
        report = json.loads(push["out"])
        pushes.append(push)
        note = f"stored {service.stored() / 2**20:.0f} MiB"
        assert report["bytes"] == raw1, (report["bytes"], raw1)
        if wanted("again"):
            again.append(run([DRAY, "push", v1, "--to", "bench/a", "--json"], env, [service.pid]))
            nocache.append(run([DRAY, "push", v1, "--to", "bench/a", "--json", "--rehash"], env, [service.pid]))
        target = os.path.join(SCRATCH, "pulled")
        park(target)
        pulls.append(run([DRAY, "pull", "bench/a@v1", target, "--json"], env, [service.pid]))
        if n == 0:
            subprocess.run(["diff", "-r", "--no-dereference", v1, target], check=True)
        warm(v2)
        second = run([DRAY, "push", v2, "--to", "bench/a", "--json"], env, [service.pid])
        seconds.append(second)
        sent = json.loads(second["out"])["sent_bytes"]
        note2 = f"sent {sent / 2**20:.0f} MiB = {100 * sent / raw2:.1f} %"
        peak = max(peak, service.peak())
        service.stop()
    record(f"{corpus}: dray push", raw1, files1, pushes, note, peak=peak)
    record(f"{corpus}: dray push v2 after v1", raw2, files2, seconds, note2)
    if again:
        record(f"{corpus}: dray push again, stat cache warm", raw1, files1, again, f"{statistics.median(r['cpu'] for r in again):.2f} CPU s in all")
        record(f"{corpus}: dray push again, --rehash", raw1, files1, nocache)
    record(f"{corpus}: dray pull, verified", raw1, files1, pulls)


def peers(corpus, v1, v2):
    (raw1, files1), (raw2, files2) = size_of(v1), size_of(v2)
    target = os.path.join(SCRATCH, "out-tree")
    repo = os.path.join(SCRATCH, "repo")
    env = dict(os.environ, BORG_BASE_DIR=os.path.join(SCRATCH, "borg"), BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes", BORG_RELOCATED_REPO_ACCESS_IS_OK="yes")
    if "cp" in PEERS:
        runs = []
        for _ in range(opt.runs):
            park(target)
            warm(v1)
            runs.append(run(["cp", "-r", v1, target]))
        record(f"{corpus}: cp -r", raw1, files1, runs)
    if "borg" in PEERS:
        up, second, down = [], [], []
        for _ in range(max(1, min(opt.runs, 3))):
            park(repo)
            park(os.path.join(SCRATCH, "borg"))
            subprocess.run(["borg", "init", "-e", "none", repo], env=env, check=True, stderr=subprocess.DEVNULL)
            warm(v1)
            up.append(run(["borg", "create", "--compression", "auto,zstd,1", f"{repo}::a", v1], env))
            stored = size_of(repo)[0]
            warm(v2)
            second.append(run(["borg", "create", "--compression", "auto,zstd,1", f"{repo}::b", v2], env))
            grown = size_of(repo)[0] - stored
            park(target)
            os.makedirs(target)
            down.append(run(f"cd {target} && exec borg extract {repo}::a", env))
        record(f"{corpus}: borg create auto,zstd,1", raw1, files1, up, f"stored {stored / 2**20:.0f} MiB")
        record(f"{corpus}: borg create v2 after v1", raw2, files2, second, f"new {grown / 2**20:.0f} MiB = {100 * grown / raw2:.1f} %")
        record(f"{corpus}: borg extract", raw1, files1, down)


print("| what | CPU s/GiB, client | CPU s/GiB, service | wall s | files/s | client peak MiB | service peak MiB | |\n|---|---|---|---|---|---|---|---|")
for corpus in ("footage", "dataset"):
    v1, v2 = (os.path.join(CORPORA, corpus, v) for v in ("v1", "v2"))
    if not os.path.isdir(v1) or not wanted(corpus):
        continue
    dray(corpus, v1, v2)
    peers(corpus, v1, v2)
if opt.json:
    json.dump(rows, open(opt.json, "w"), indent=1)
