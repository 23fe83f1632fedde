"""Dray's processes and the S3 server that the measurements run against, all on loopback."""
import atexit, json, os, shutil, signal, socket, sqlite3, subprocess, time
from .measure import Failed, cpu_of, forget_peak, peak_of, run, size_of, touch_memory

S3_SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "services", "s3.sh")
S3_KEYS = {"AWS_ACCESS_KEY_ID": "benchaccess", "AWS_SECRET_ACCESS_KEY": "benchsecretkey12345", "AWS_DEFAULT_REGION": "us-east-1"}

running = []


@atexit.register
def stop_all():
    """What a failed run leaves behind must not go on."""
    for part in reversed(running[:]):
        part.stop()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class S3:
    """A SeaweedFS on loopback with bucket `stage`, empty."""

    def __init__(self, place):
        self.dir = place.clear("s3")
        self.env = dict(os.environ, WEED=S3.program(), **S3_KEYS)
        port = subprocess.run(["bash", S3_SCRIPT, "start", self.dir], env=self.env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        self.endpoint = f"http://127.0.0.1:{port}"
        with open(os.path.join(self.dir, "pid")) as file:
            self.pid = int(file.read())
        running.append(self)

    @staticmethod
    def program():
        return os.environ.get("WEED") or shutil.which("weed")

    def stop(self):
        running.remove(self)
        subprocess.run(["bash", S3_SCRIPT, "stop", self.dir], check=True)


class Service:
    """`dray serve` on a fresh data directory; a local store, or a prefix of an S3 server's bucket."""

    def __init__(self, place, program, name="service", s3=None):
        self.place, self.program, self.s3 = place, program, s3
        self.data = place.clear(name + "-data")
        self.store = os.path.join(self.data, "store")
        self.cache = place.clear(name + "-cache")
        self.log = open(place.at(name + ".log"), "wb")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        # One line a request, to count them.
        env = dict(os.environ, DRAY_LOG_LEVEL="info,dray_service::server::layers=debug")
        command = [program, "serve", "--data", self.data, "--listen", f"127.0.0.1:{port}"]
        if s3:
            env.update(DRAY_STORE_ENDPOINT=s3.endpoint, **S3_KEYS)
            command += ["--store", "s3://stage/bench"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env)
        self.pid = self.process.pid
        running.append(self)
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise Failed("the service did not start; see " + self.log.name)
                time.sleep(0.05)
        with open(os.path.join(self.data, "admin.token")) as file:
            self.token = file.read().strip()
        self.env = dict(os.environ, DRAY_URL=self.url, DRAY_TOKEN=self.token, XDG_CACHE_HOME=self.cache)

    def requests(self):
        """Answered so far."""
        with open(self.log.name, "rb") as file:
            return sum(b"answered" in line for line in file)

    def call(self, *arguments):
        """A command that is not measured; its document."""
        done = subprocess.run([self.program, *arguments, "--json"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise Failed(f"dray {' '.join(arguments)} ended with {done.returncode}\n{(done.stdout + done.stderr).decode(errors='replace')[-2000:]}")
        return json.loads(done.stdout)

    def measured(self, *arguments):
        """One command as a sample: what `run` says, its document, the requests it made, the S3 server's CPU."""
        asked = self.requests()
        stored = cpu_of(self.s3.pid) if self.s3 else 0.0
        sample = run(self.place, [self.program, *arguments, "--json"], self.env, [self.pid])
        sample["report"] = json.loads(sample.pop("out"))
        sample["requests"] = self.requests() - asked
        sample["store_cpu"] = cpu_of(self.s3.pid) - stored if self.s3 else 0.0
        return sample

    def stored(self):
        return size_of(self.store)[0]

    def packs(self):
        """Sizes of the packs in the local store."""
        walk = os.walk(os.path.join(self.store, "packs"))
        return sorted(os.path.getsize(os.path.join(base, name)) for base, _, files in walk for name in files)

    def sql_bytes(self):
        """Bytes of SQLite in use: pages that are not free."""
        db = sqlite3.connect(f"file:{os.path.join(self.data, 'dray.sqlite')}?mode=ro", uri=True)
        try:
            pages, free, size = (db.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size"))
        finally:
            db.close()
        return (pages - free) * size

    def stop(self):
        running.remove(self)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.log.close()


class Agent:
    """`dray agent` on a node of its own; stages versions and says what that cost the agent."""

    def __init__(self, place, service, node):
        self.service, self.place, self.node = service, place, node
        self.home = place.clear("agent-" + node)
        self.log = open(place.at(f"agent-{node}.log"), "wb")
        token = service.call("node", "add", node)["token"]
        env = dict(service.env, DRAY_TOKEN=token)
        self.process = subprocess.Popen([service.program, "agent", "--cache", self.home, "--node", node], env=env, stdout=self.log, stderr=self.log)
        self.pid = self.process.pid
        running.append(self)
        until = time.monotonic() + 60
        while b"agent is at work" not in open(self.log.name, "rb").read():
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failed("the agent did not start; see " + self.log.name)
            time.sleep(0.05)

    def stage(self, reference):
        """From the request for the staging to `ready`."""
        job_file = self.place.at("job.toml")
        with open(job_file, "w") as file:
            file.write(f'name = "bench"\n[[data]]\nfrom = "{reference}"\nat = "in"\n')
        job = self.service.call("job", "submit", job_file)["id"]
        self.service.call("lease", "grant", "--job", job, "--node", self.node, "--until", "8h")
        os.sync()
        touch_memory()
        pids = (self.pid, self.service.pid)
        for pid in pids:
            forget_peak(pid)
        agent, served, asked, start = *(cpu_of(pid) for pid in pids), self.service.requests(), time.monotonic()
        staging = self.service.call("stage", "--job", job, "--node", self.node)["id"]
        done = self.service.call("staging", "wait", staging, "--timeout", "6h")
        wall = time.monotonic() - start
        assert done["state"] == "ready", done
        return {
            "wall": wall, "cpu": cpu_of(self.pid) - agent, "served": cpu_of(self.service.pid) - served, "rss": peak_of(self.pid),
            "peak": peak_of(self.service.pid), "report": done, "requests": self.service.requests() - asked, "tree": os.path.join(done["path"], "in"),
        }

    def stop(self):
        running.remove(self)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.log.close()
