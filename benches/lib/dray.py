"""Dray's own lines: the roads on a local or an S3 store, edits over a slow link, and scale."""
import base64, json, os
from .measure import GIB, MIB, Started, cpu_of, forget_peak, need_space, peak_of, same, size_of, touch_memory, warm
from .parts import Agent, S3, Service
from .table import median
from . import trees

# What one cycle can do, in order; all but the push can be left out.
STEPS = {
    "push": "dray push", "again": "dray push again, stat cache warm", "rehash": "dray push again, --rehash", "pull": "dray pull, verified",
    "stage": "dray stage, read back", "v2": "dray push v2 after v1",
}


def pushed(sample, raw, files):
    report = sample["report"]
    assert (report["bytes"], report["files"], report["failed"], report["incomplete"]) == (raw, files, [], False), report
    return sample


def pulled(sample, raw, files):
    report = sample["report"]
    assert (report["bytes"], report["files"], report["failed"]) == (raw, files, []), report
    return sample


def staged(sample, raw, files):
    """Ready, all of it, and every file read back after it was written, as the signed receipt says."""
    receipt = json.loads(base64.b64decode(sample["report"]["receipt"]["payload"]))
    assert (sample["report"]["bytes_done"], receipt["bytes"], receipt["files"]) == (raw, raw, files), receipt
    sample["reread"] = receipt["method"]["reread_files"]
    assert sample["reread"] == files, receipt
    return sample


def cycle(place, program, v1, v2, steps, check, s3=None):
    """One fresh service and one sample of each step. `check`: compare the trees byte for byte too."""
    (raw1, files1), (raw2, files2) = size_of(v1), size_of(v2)
    service = Service(place, program, s3=s3)
    sql = service.sql_bytes() if not s3 else 0
    push = ["push", v1, "--to", "bench/a"]
    taken = {}
    warm(v1)
    taken["push"] = pushed(service.measured(*push), raw1, files1)
    if not s3:
        taken["push"].update(stored=service.stored(), sql=service.sql_bytes(), sql_before=sql)
    if "again" in steps:
        taken["again"] = pushed(service.measured(*push), raw1, files1)
        assert taken["again"]["report"]["unchanged"], "pushed again: a new version"
    if "rehash" in steps:
        warm(v1)
        taken["rehash"] = pushed(service.measured(*push, "--rehash"), raw1, files1)
        assert taken["rehash"]["report"]["unchanged"], "hashed again: a new version"
    if "pull" in steps:
        target = place.clear("pulled")
        if not s3:
            warm(service.store)
        taken["pull"] = pulled(service.measured("pull", "bench/a@v1", target), raw1, files1)
        if check:
            same(v1, target)
        place.clear("pulled")
    if "stage" in steps:
        if not s3:
            warm(service.store)
        agent = Agent(place, service, "node-1")
        taken["stage"] = staged(agent.stage("bench/a@v1"), raw1, files1)
        agent.stop()
        if check:
            same(v1, taken["stage"]["tree"])
        place.clear("agent-node-1")
    if "v2" in steps:
        warm(v2)
        taken["v2"] = pushed(service.measured("push", v2, "--to", "bench/a"), raw2, files2)
    service.stop()
    place.clear("service-data")
    return taken


def note_of(step, samples, raw):
    last = samples[-1]
    if step == "push" and "stored" in last:
        return f"stored {last['stored'] / MIB:.0f} MiB, {last['requests']} requests"
    if step == "v2":
        sent = median([s["report"] for s in samples], "sent_bytes")
        return f"sent {sent / MIB:.0f} MiB = {100 * sent / raw:.1f} %"
    if step in ("again", "rehash"):
        return f"{median(samples, 'cpu'):.2f} CPU s in all, {last['requests']} requests, sent {last['report']['sent_bytes']} B"
    if step == "stage":
        return stage_note(last)
    return f"{last['requests']} requests"


def stage_note(sample):
    return f"{sample['reread']:,} files read back and hashed, {sample['requests']} requests"


def roads(place, table, program, corpus, v1, v2, runs):
    """All roads on the local store."""
    steps = {step: f"{corpus}: {name}" for step, name in STEPS.items()}
    asked = [step for step, name in steps.items() if table.wants(name)]
    sql_name = f"{corpus}: SQL of one push"
    if not asked and not table.wants(sql_name):
        return
    cycles = [cycle(place, program, v1, v2, asked, check=n == 0) for n in range(runs)]
    sizes = {step: size_of(v2 if step == "v2" else v1) for step in STEPS}
    for step in asked:
        samples = [taken[step] for taken in cycles]
        table.add(steps[step], *sizes[step], samples, note_of(step, samples, sizes[step][0]))
    push = cycles[-1]["push"]
    grown = push["sql"] - push["sql_before"]
    a_tib = grown / push["stored"] * 2 ** 40 / MIB
    note = f"{grown / 1024:.0f} KiB for {push['stored'] / MIB:.0f} MiB stored = {a_tib:.1f} MiB a TiB; {push['sql_before'] / 1024:.0f} KiB before the first push"
    table.fact(sql_name, note, sql_bytes=push["sql"], sql_bytes_before=push["sql_before"], stored_bytes=push["stored"], sql_mib_a_stored_tib=a_tib)


def on_s3(place, table, program, corpus, v1, v2, runs):
    """Push, pull, and the edit, on an S3 server of this machine; its CPU is in the note."""
    names = {step: f"{corpus}, S3: {STEPS[step]}" for step in ("push", "pull", "v2")}
    asked = [step for step, name in names.items() if table.wants(name)]
    if not asked:
        return
    cycles = []
    for n in range(runs):
        s3 = S3(place)
        cycles.append(cycle(place, program, v1, v2, asked, check=n == 0, s3=s3))
        s3.stop()
        place.clear("s3")
    for step in asked:
        samples, (raw, files) = [taken[step] for taken in cycles], size_of(v2 if step == "v2" else v1)
        table.add(names[step], raw, files, samples, f"{note_of(step, samples, raw)}; S3 server {median(samples, 'store_cpu') / (raw / GIB):.2f} CPU s/GiB")


def slow_link(place, table, program, v1, v2, size):
    """New bytes of an edit when the first version lies in the small packs of a slow link, against large ones. A push makes its packs smaller, down to
    1 MiB, when one takes over 20 s; a small --memory makes them so at once, so the first version goes fast. The second goes at 1 Mbit/s."""
    name = "footage cut: v2 at 1 Mbit/s, small packs"
    if not table.wants(name):
        return
    old, new = trees.cut("footage", v1, v2, size, place.clear("cut"))
    (raw1, files1), (raw2, files2) = size_of(old), size_of(new)
    sent, samples = [], []
    for small in (False, True):
        service = Service(place, program)
        pushed(service.measured("push", old, "--to", "bench/a", *(["--memory", "96M"] if small else [])), raw1, files1)
        packs = service.packs()
        assert not small or packs[-1] < 1.25 * MIB, f"packs of up to {packs[-1]} bytes are not small"
        sample = service.measured("push", new, "--to", "bench/a", *(["--memory", "96M", "--limit-rate", "125k"] if small else []))
        samples.append(pushed(sample, raw2, files2))
        sent.append(sample["report"]["sent_bytes"])
        same_bytes = place.clear("pulled")
        pulled(service.measured("pull", "bench/a@v2", same_bytes), raw2, files2)
        same(new, same_bytes)
        service.stop()
        note = f"sent {sent[-1] / MIB:.2f} MiB = {100 * sent[-1] / raw2:.1f} %; v1 in {len(packs)} packs of up to {packs[-1] / MIB:.1f} MiB"
        table.add(name if small else f"{name[:11]}: v2 unshaped (for {name})", raw2, files2, [sample], note)
    ratio = sent[1] / sent[0]
    table.fact(f"{name}, bytes sent against unshaped", f"{ratio:.3f} times" + ("" if ratio <= 1.1 else ": MORE THAN 1.1"), ratio=ratio)
    place.clear("cut")


def scale_tree(place, table, program, names, tree):
    """Push, pull and stage of one tree, once: peaks. `names`: of the lines that are asked for, by step."""
    raw, files = size_of(tree)
    service = Service(place, program)
    push = pushed(service.measured("push", tree, "--to", "bench/a"), raw, files)
    if "push" in names:
        table.add(names["push"], raw, files, [push], f"{raw / MIB:,.0f} MiB, {push['requests']} requests")
    if "pull" in names:
        target = place.clear("pulled")
        pull = pulled(service.measured("pull", "bench/a@v1", target), raw, files)
        same(tree, target)
        place.clear("pulled")
        table.add(names["pull"], raw, files, [pull], f"{pull['requests']} requests")
    if "stage" in names:
        warm(service.store)
        agent = Agent(place, service, "node-1")
        stage = staged(agent.stage("bench/a@v1"), raw, files)
        agent.stop()
        place.clear("agent-node-1")
        table.add(names["stage"], raw, files, [stage], stage_note(stage))
    service.stop()
    place.clear("service-data")


def pushes_at_once(place, table, program, name, size, count=8):
    """Eight pushes to one service: a large file and 2,000 small ones each."""
    parts = [place.clear(f"part-{i}") for i in range(count)]
    for i, part in enumerate(parts):
        trees.small_files(part, 2000, seed=100 + i)
        trees.keystream(os.path.join(part, "large.bin"), size, key=100 + i)
    sizes = [size_of(part) for part in parts]
    service = Service(place, program)
    forget_peak(service.pid)
    before, asked = cpu_of(service.pid), service.requests()
    os.sync()
    touch_memory()
    started = []
    for i, part in enumerate(parts):
        env = dict(service.env, XDG_CACHE_HOME=place.clear(f"cache-{i}"))
        started.append(Started(place, [program, "push", part, "--to", f"bench/a{i}", "--json"], env, tag=f"at-once-{i}"))
    samples = [process.end() for process in started]
    for sample, (raw, files) in zip(samples, sizes):
        pushed({"report": json.loads(sample["out"])}, raw, files)
    together = {
        "wall": max(s["wall"] for s in samples), "cpu": sum(s["cpu"] for s in samples), "rss": max(s["rss"] for s in samples),
        "served": cpu_of(service.pid) - before, "peak": peak_of(service.pid),
    }
    raw, files = (sum(column) for column in zip(*sizes))
    requests = service.requests() - asked
    target = place.clear("pulled")
    pulled(service.measured("pull", f"bench/a{count - 1}@v1", target), *sizes[-1])
    same(parts[-1], target)
    service.stop()
    table.add(name, raw, files, [together], f"peak of the largest client, CPU of all; {requests} requests")
    for name in [f"part-{i}" for i in range(count)] + ["pulled", "service-data"]:
        place.clear(name)


def scale(place, table, program, files, size):
    """Memory must not follow the number of files, their size, or the number of clients by more than a buffer each."""
    for what, make in (
        (f"scale, {files:,} small files", lambda tree: trees.small_files(tree, files)),
        (f"scale, one file of {size / GIB:.2g} GiB", lambda tree: trees.keystream(os.path.join(tree, "large.bin"), size, key=1)),
    ):
        names = {step: f"{what}: {STEPS[step]}" for step in ("push", "pull", "stage")}
        names = {step: name for step, name in names.items() if table.wants(name)}
        if names:
            need_space(place.scratch, 3.2 * size / GIB + 4, what)
            tree = place.clear("scale")
            make(tree)
            scale_tree(place, table, program, names, tree)
            place.clear("scale")
    what = "scale, 8 pushes at once"
    if table.wants(what):
        pushes_at_once(place, table, program, what, size // 16)
