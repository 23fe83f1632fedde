#!/usr/bin/env python3
"""Measures Dray and its peers on the same corpora in one run, as whole processes.

    benches/peers.py [--bin target/release/dray] [--work target/bench] [--runs 5] [--only REGEX] [--peers cp,borg,...] [--scale] [--json FILE]
    benches/peers.py --bin A --versus B --only 'footage: dray (push|pull)' [--runs 3] [--cut 500M]

Needs the corpora (benches/corpora/footage.sh with ffmpeg, benches/corpora/dataset.py with numpy). One table: CPU seconds (user + system, children
included) per GiB of raw data for the client (the agent where data is staged) and, apart, for the service; wall seconds; files per second; peak RSS of
each; bytes stored or sent. Medians; the largest peak. Peers that are not on PATH are left out, and said so; the S3 lines need `weed` on PATH or in
$WEED. What is pushed, pulled and staged is checked in every run, byte for byte in the first. Sources are read once before each run, so that they lie
in the page cache. Judge by CPU and by ratios of the same run: walls move with the neighbours.
"""
import argparse, os, re, signal, subprocess, sys, time

sys.dont_write_bytecode = True
from lib import dray, others, trees, versus
from lib.measure import Failed, Place, need_space
from lib.parts import S3
from lib.table import Table


def options():
    arg = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    arg.add_argument("--bin", default="target/release/dray")
    arg.add_argument("--versus", metavar="BIN", help="compare with another binary: --bin is A, this is B, in turn, on the local store")
    arg.add_argument("--work", default="target/bench", help="scratch is made below it and removed; one run at a time")
    arg.add_argument("--corpora", metavar="DIR", help="instead of WORK/corpora")
    arg.add_argument("--runs", type=int, default=5, help="of Dray and cp; peers get at most 3")
    arg.add_argument("--only", default=".", help="lines to measure, a regular expression on their names")
    arg.add_argument("--peers", default=",".join(others.ALL))
    arg.add_argument("--cut", type=trees.parse_size, metavar="SIZE", help="about so much of each corpus only, to try things out")
    arg.add_argument("--link-cut", type=trees.parse_size, default="50M", metavar="SIZE", help="of the footage, for the line at 1 Mbit/s")
    arg.add_argument("--scale", action="store_true", help="also 300,000 files, one 8 GiB file, and 8 pushes at once")
    arg.add_argument("--scale-files", type=int, default=300_000)
    arg.add_argument("--scale-size", type=trees.parse_size, default="8G")
    arg.add_argument("--json", metavar="FILE")
    return arg.parse_args()


def find_corpora(opt, place):
    """(name, v1, v2), or cuts of them."""
    folder = os.path.abspath(opt.corpora or os.path.join(place.work, "corpora"))
    for name in ("footage", "dataset"):
        v1, v2 = (os.path.join(folder, name, version) for version in ("v1", "v2"))
        if not os.path.isdir(v1) or not os.path.isdir(v2):
            print(f"no corpus `{name}` below {folder}: left out", file=sys.stderr)
        elif opt.versus and not any(re.search(opt.only, f"{name}: {line}") for line in dray.STEPS.values()):
            continue
        elif opt.cut:
            yield name, *trees.cut(name, v1, v2, opt.cut, place.clear(f"corpus-{name}"))
        else:
            yield name, v1, v2


def about(opt, program, peers):
    """What ran, and on what."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpu": model, "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * 4096 / 2 ** 30), "load": os.getloadavg()[0], "dray": said, "peers": [others.version(name) for name in peers], "runs": opt.runs, "cut": opt.cut,
    }


def full(opt, place, table, program, corpora, peers):
    """Every line that is asked for. A peer that fails is named and left out; when Dray fails, the run ends."""
    with_s3 = S3.program() is not None
    if not with_s3:
        print("no `weed` on PATH or in $WEED: the S3 lines are left out", file=sys.stderr)
    for corpus, v1, v2 in corpora:
        dray.roads(place, table, program, corpus, v1, v2, opt.runs)
        others.local(place, table, peers, corpus, v1, v2, opt.runs)
        if with_s3:
            dray.on_s3(place, table, program, corpus, v1, v2, min(opt.runs, 3))
            others.on_s3(place, table, peers, corpus, v1, min(opt.runs, 3))
        if corpus == "footage":
            dray.slow_link(place, table, program, v1, v2, min(opt.link_cut, opt.cut or opt.link_cut))
    if opt.scale:
        dray.scale(place, table, program, opt.scale_files, opt.scale_size)


def main():
    opt = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    place = Place(opt.work)
    program = os.path.abspath(opt.bin)
    for binary in (program, opt.versus or program):
        if not os.access(binary, os.X_OK):
            sys.exit(f"{binary} is no program; build it with `cargo build --release`, or give --bin")
    corpora = list(find_corpora(opt, place))
    if not opt.cut:
        need_space(place.scratch, 25, "a run over whole corpora")
    peers, missing = others.present("" if opt.versus else opt.peers)
    for name in missing:
        print(f"peer `{name}` is not on PATH: left out", file=sys.stderr)
    machine = about(opt, program, peers)
    table = Table(opt.only, quiet=opt.versus is not None)
    try:
        if opt.versus:
            table.rows = versus.compare(place, (program, os.path.abspath(opt.versus)), table.wants, corpora, opt.runs)
        else:
            full(opt, place, table, program, corpora, peers)
            print("\n" + "; ".join([machine["at"], machine["cpu"], f"{machine['cores']} cores", machine["dray"], *machine["peers"]]))
    except Failed as why:
        sys.exit(f"failed: {why}\n{place.scratch} is left to look at")
    finally:
        if opt.json and table.rows:
            table.save(opt.json, **machine)
    place.end()


main()
