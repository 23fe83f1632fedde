"""One whole process measured, and the places it works in.

CPU is user + system of the process and all its waited-for children. A child's peak never reads below this script's own (about 16 MiB), since the
kernel counts what lay in memory before `exec`.
"""
import fcntl, os, shutil, subprocess, sys, time

GIB = 2.0 ** 30
MIB = 2.0 ** 20
TICK = os.sysconf("SC_CLK_TCK")
# Trees of more files than this are renamed away, not deleted: ext4 makes creations dear for minutes after many deletions.
MANY = 1000
# GiB of disk that must stay free.
LEAST_FREE = 20
# GiB of free memory that are touched before each measured process, and what must stay free meanwhile.
TOUCHED, SPARED = 6, 2
# 23 = MADV_POPULATE_WRITE
TOUCH = "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(23)"


class Failed(Exception):
    """A process that did not do what it was asked to."""


class Place:
    """Where a run leaves its things: emptied at its start, removed at its end unless it fails."""

    def __init__(self, work):
        self.work = os.path.abspath(work)
        self.scratch = os.path.join(self.work, "scratch")
        self.trash = os.path.join(self.work, "trash")
        os.makedirs(self.work, exist_ok=True)
        self.lock = open(os.path.join(self.work, "lock"), "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"another run works in {self.work}; give another --work")
        self.end()
        os.makedirs(self.scratch)

    def at(self, *names):
        return os.path.join(self.scratch, *names)

    def clear(self, name):
        """The path of `name`, with nothing there. Large trees go aside by rename, and are deleted at the end or when the disk gets full."""
        path = self.at(name)
        if not os.path.lexists(path):
            return path
        if not os.path.isdir(path) or os.path.islink(path):
            os.remove(path)
            return path
        if size_of(path)[1] <= MANY:
            shutil.rmtree(path)
            return path
        if shutil.disk_usage(self.work).free < LEAST_FREE * GIB and os.path.isdir(self.trash):
            print("the disk gets full: trees set aside are deleted, and creating files may be dear for minutes", file=sys.stderr)
            shutil.rmtree(self.trash)
        aside = os.path.join(self.trash, str(time.monotonic_ns()))
        os.makedirs(aside)
        os.rename(path, os.path.join(aside, "x"))
        return path

    def end(self):
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.trash, ignore_errors=True)


def size_of(path):
    """Bytes and files below a path."""
    count = total = 0
    for base, _, files in os.walk(path):
        for name in files:
            count += 1
            total += os.lstat(os.path.join(base, name)).st_size
    return total, count


def need_space(path, gib, what):
    free = shutil.disk_usage(path).free / GIB
    if free < gib:
        sys.exit(f"{what} needs {gib:.0f} GiB of disk at {path}; {free:.0f} GiB are free")


def warm(path):
    """Into the page cache, and all else out of it: where it has filled the memory, whoever writes makes room first. Only root can empty it."""
    os.sync()
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("1")
    subprocess.run(["sh", "-c", 'find "$1" -type f -print0 | xargs -0 cat > /dev/null', "warm", path], check=True)


def touch_memory():
    """Has the host give this machine its free memory. Hosts take back what lies free for seconds, and then a file written for the first time cost two to
    four times the system time here, whoever wrote it: 50,000 small files took 2.0 or 5.2 s. Before every measured process alike, by a process of its own,
    since a child's peak is never below its parent's."""
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("MemFree")) / 2 ** 20
    size = int(min(TOUCHED, free - SPARED) * GIB)
    if size > 0:
        subprocess.run([sys.executable, "-c", TOUCH, str(size)], stderr=subprocess.DEVNULL, check=False)  # before Linux 5.14: not done


def same(expected, found):
    """Stops the run when two trees differ."""
    differs = subprocess.run(["diff", "-rq", "--no-dereference", expected, found], stdout=subprocess.PIPE, text=True)
    if differs.returncode != 0:
        raise Failed(f"{found} is not {expected}:\n{differs.stdout[:2000]}")


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def peak_of(pid):
    """Peak RSS in MiB since the last `forget_peak`."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0


def forget_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


class Started:
    """A process under way; `end` waits for it and says what it cost."""

    def __init__(self, place, command, env=None, tag="run", cwd=None):
        self.command = command
        self.out = open(place.at(tag + ".out"), "w+b")
        self.err = open(place.at(tag + ".err"), "w+b")
        self.start = time.monotonic()
        self.child = subprocess.Popen(command, stdout=self.out, stderr=self.err, env=env, cwd=cwd)

    def end(self):
        try:
            _, status, usage = os.wait4(self.child.pid, 0)
        except BaseException:
            self.child.kill()
            raise
        wall = time.monotonic() - self.start
        self.child.returncode = os.waitstatus_to_exitcode(status)
        self.out.seek(0)
        self.err.seek(0)
        out, err = self.out.read(), self.err.read()
        self.out.close()
        self.err.close()
        if self.child.returncode != 0:
            raise Failed(f"{' '.join(self.command)} ended with {self.child.returncode}\n{err.decode(errors='replace')[-2000:]}")
        return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024, "out": out}


def run(place, command, env=None, served_by=(), cwd=None):
    """One process from start to end. `served`, `peak`: CPU that the processes `served_by` used meanwhile, and the largest of their peaks."""
    os.sync()
    touch_memory()
    before = sum(cpu_of(pid) for pid in served_by)
    for pid in served_by:
        forget_peak(pid)
    sample = Started(place, command, env, cwd=cwd).end()
    sample["served"] = sum(cpu_of(pid) for pid in served_by) - before
    sample["peak"] = max((peak_of(pid) for pid in served_by), default=0.0)
    return sample
