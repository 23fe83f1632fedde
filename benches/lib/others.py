"""The peers, each with the command its users would type. None that is not on PATH is measured."""
import os, shutil, subprocess, sys
from .measure import Failed, GIB, MIB, run, same, size_of, warm
from .parts import S3, S3_KEYS, stop_all
from .table import median

ALL = ("cp", "borg", "restic", "xet", "s5cmd", "aws")
XET = os.path.join(os.path.dirname(__file__), "xet.py")


def present(names):
    """Those of a comma-separated list that can run here, and those that cannot."""
    names = [name for name in names.split(",") if name]
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"peers are {', '.join(ALL)}; not {', '.join(unknown)}")
    here = [name for name in names if is_here(name)]
    return here, [name for name in names if name not in here]


def is_here(name):
    if name != "xet":
        return shutil.which(name) is not None
    # The Python that is first on PATH, so that a virtual environment's bin directory there is enough.
    return subprocess.run(["python3", "-c", "import hf_xet"], stderr=subprocess.DEVNULL).returncode == 0


VERSIONS = {
    "cp": ["cp", "--version"], "borg": ["borg", "--version"], "restic": ["restic", "version"], "s5cmd": ["s5cmd", "version"], "aws": ["aws", "--version"],
    "xet": ["python3", "-c", "import importlib.metadata as m; print('hf-xet', m.version('hf-xet'))"],
}


def version(name):
    said = subprocess.run(VERSIONS[name], stdout=subprocess.PIPE, text=True).stdout.split("\n")[0].strip()
    return said if name[:2] in said else f"{name} {said}"


class Peer:
    """A peer with a store of its own in a directory."""

    def __init__(self, place):
        self.place = place
        self.repo = place.at("repo")
        self.env = dict(os.environ, XDG_CACHE_HOME=place.at("peer-cache"))

    def fresh(self):
        self.place.clear("repo")
        self.place.clear("peer-cache")

    def run(self, *command, cwd=None):
        return run(self.place, list(command), self.env, cwd=cwd)


class Borg(Peer):
    up_name, down_name = "borg create auto,zstd,1", "borg extract"

    def fresh(self):
        super().fresh()
        self.env.update(BORG_BASE_DIR=self.place.at("peer-cache"), BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes", BORG_RELOCATED_REPO_ACCESS_IS_OK="yes")
        subprocess.run(["borg", "init", "-e", "none", self.repo], env=self.env, check=True, stderr=subprocess.DEVNULL)

    def up(self, tree, name):
        return self.run("borg", "create", "--compression", "auto,zstd,1", f"{self.repo}::{name}", tree)

    def down(self, tree, target):
        os.makedirs(target)
        return self.run("borg", "extract", f"{self.repo}::a", cwd=target), os.path.join(target, tree.lstrip("/"))


class Restic(Peer):
    up_name, down_name = "restic backup", "restic restore"

    def fresh(self):
        super().fresh()
        self.env.update(RESTIC_PASSWORD="x", RESTIC_CACHE_DIR=self.place.at("peer-cache"))
        subprocess.run(["restic", "-r", self.repo, "init", "-q"], env=self.env, check=True)

    def up(self, tree, name):
        return self.run("restic", "-r", self.repo, "backup", "-q", "--tag", name, tree)

    def down(self, tree, target):
        return self.run("restic", "-r", self.repo, "restore", "-q", "--tag", "a", "latest", "--target", target), os.path.join(target, tree.lstrip("/"))


class Xet(Peer):
    up_name, down_name = "hf-xet upload", "hf-xet download"

    def fresh(self):
        super().fresh()
        os.makedirs(self.repo)
        self.env.update(HF_HOME=self.place.at("peer-cache"))

    def up(self, tree, name):
        return self.run("python3", XET, "up", tree, self.repo, self.place.at(f"xet-{name}.json"))

    def down(self, tree, target):
        return self.run("python3", XET, "down", self.place.at("xet-a.json"), target, self.repo), target


def tried(name, road, *arguments):
    """A peer that fails is named and left out; the run goes on."""
    try:
        road(*arguments)
    except (Failed, subprocess.CalledProcessError) as why:
        stop_all()
        print(f"peer `{name}` failed and is left out: {why}", file=sys.stderr)


def local(place, table, peers, corpus, v1, v2, runs):
    if "cp" in peers and table.wants(f"{corpus}: cp -r"):
        tried("cp", plain_copy, place, table, corpus, v1, runs)
    for name, kind in (("borg", Borg), ("restic", Restic), ("xet", Xet)):
        lines = [f"{corpus}: {line}" for line in (kind.up_name, f"{kind.up_name} v2 after v1", kind.down_name)]
        if name in peers and any(table.wants(line) for line in lines):
            # One of hf-xet's downloads of many files takes minutes.
            times = 1 if name == "xet" and size_of(v1)[1] > 10_000 else min(runs, 3)
            tried(name, a_store, place, table, kind(place), lines, v1, v2, times)


def plain_copy(place, table, corpus, v1, runs):
    samples = []
    for _ in range(runs):
        target = place.clear("out-tree")
        warm(v1)
        samples.append(run(place, ["cp", "-r", v1, target]))
    place.clear("out-tree")
    table.add(f"{corpus}: cp -r", *size_of(v1), samples, "no sync")


def a_store(place, table, peer, names, v1, v2, runs):
    (raw1, files1), (raw2, files2) = size_of(v1), size_of(v2)
    up, again, down = [], [], []
    for n in range(runs):
        peer.fresh()
        warm(v1)
        up.append(peer.up(v1, "a"))
        stored = size_of(peer.repo)[0]
        target = place.clear("out-tree")
        warm(peer.repo)
        sample, tree = peer.down(v1, target)
        down.append(sample)
        if n == 0:
            same(v1, tree)
        place.clear("out-tree")
        warm(v2)
        again.append(peer.up(v2, "b"))
        grown = size_of(peer.repo)[0] - stored
    table.add(names[0], raw1, files1, up, f"stored {stored / MIB:.0f} MiB")
    table.add(names[1], raw2, files2, again, f"new {grown / MIB:.0f} MiB = {100 * grown / raw2:.1f} %")
    table.add(names[2], raw1, files1, down)
    place.clear("repo")
    place.clear("peer-cache")


# (up, down) with the endpoint, a directory and a prefix of a bucket.
COPIERS = {
    "s5cmd": (
        lambda end, tree: ["s5cmd", "--log", "error", "--endpoint-url", end, "cp", tree + "/", "s3://stage/d/"],
        lambda end, tree: ["s5cmd", "--log", "error", "--endpoint-url", end, "cp", "s3://stage/d/*", tree + "/"],
    ),
    "aws": (
        lambda end, tree: ["aws", "--endpoint-url", end, "s3", "cp", "--quiet", "--recursive", tree, "s3://stage/d/"],
        lambda end, tree: ["aws", "--endpoint-url", end, "s3", "cp", "--quiet", "--recursive", "s3://stage/d/", tree + "/"],
    ),
}


def on_s3(place, table, peers, corpus, v1, runs):
    """Plain copies to the same S3 server: an object a file. Many files take minutes, so they go once, and aws copies a tenth of them (`feat`)."""
    for name in COPIERS:
        lines = [f"{corpus}, S3: {name} cp, {way}" for way in ("up", "down")]
        if name in peers and any(table.wants(line) for line in lines):
            part = os.path.join(v1, "feat")
            tree, note = (part, "`feat` only; ") if name == "aws" and os.path.isdir(part) else (v1, "")
            tried(name, a_copier, place, table, name, lines, tree, runs, note)


def a_copier(place, table, name, lines, tree, runs, note):
    env = dict(os.environ, **S3_KEYS)
    raw, files = size_of(tree)
    up, down = [], []
    for n in range(1 if files > 1000 else runs):
        s3 = S3(place)
        warm(tree)
        up.append(run(place, COPIERS[name][0](s3.endpoint, tree), env, [s3.pid]))
        target = place.clear("out-tree")
        os.makedirs(target)
        down.append(run(place, COPIERS[name][1](s3.endpoint, target), env, [s3.pid]))
        if n == 0:
            same(tree, target)
        place.clear("out-tree")
        s3.stop()
        place.clear("s3")
    for line, samples in zip(lines, (up, down)):
        # There is no service between: what served is the S3 server.
        server = median(samples, "served") / (raw / GIB)
        table.add(line, raw, files, [dict(sample, served=0.0, peak=0.0) for sample in samples], f"{note}S3 server {server:.2f} CPU s/GiB")
