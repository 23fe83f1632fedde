"""Rows of the table: medians of the runs, as Markdown while the run goes on and as JSON at its end."""
import json, re, statistics
from .measure import GIB

HEAD = """| what | runs | CPU s/GiB, client | CPU s/GiB, service | wall s | files/s | peak MiB, client | peak MiB, service | |
|---|---|---|---|---|---|---|---|---|"""


def median(samples, key):
    return statistics.median(sample[key] for sample in samples)


class Table:
    def __init__(self, only, quiet=False):
        self.only = re.compile(only)
        self.rows = []
        if not quiet:
            print(HEAD, flush=True)

    def wants(self, name):
        return self.only.search(name) is not None

    def add(self, name, raw, files, samples, note=""):
        """`raw`: bytes of data that one run handled, `files`: how many files it was."""
        if not samples or not self.wants(name):
            return
        wall = median(samples, "wall")
        row = {
            "name": name, "runs": len(samples), "raw_bytes": raw, "files": files, "client_cpu_s_gib": median(samples, "cpu") / (raw / GIB),
            "service_cpu_s_gib": median(samples, "served") / (raw / GIB), "wall_s": wall, "files_s": files / wall,
            "client_peak_mib": max(s["rss"] for s in samples), "service_peak_mib": max(s["peak"] for s in samples), "note": note,
            "each": [{key: round(s[key], 4) for key in ("wall", "cpu", "served", "rss", "peak")} for s in samples],
        }
        self.rows.append(row)
        served = f"{row['service_cpu_s_gib']:.2f} | " if row["service_peak_mib"] else " | "
        speed = f"{row['files_s']:,.0f}" if files >= 100 else ""
        peak = f"{row['service_peak_mib']:.0f}" if row["service_peak_mib"] else ""
        print(f"| {name} | {len(samples)} | {row['client_cpu_s_gib']:.2f} | {served}{wall:.2f} | {speed} | {row['client_peak_mib']:.0f} | {peak} | {note} |", flush=True)

    def fact(self, name, note, **values):
        """A figure that is no time."""
        if self.wants(name):
            self.rows.append({"name": name, "note": note, **values})
            print(f"| {name} | | | | | | | | {note} |", flush=True)

    def save(self, path, **about):
        with open(path, "w") as file:
            json.dump({**about, "rows": self.rows}, file, indent=1)
            file.write("\n")
