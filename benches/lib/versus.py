"""Two binaries in turn, A B A B: what a change costs or gains."""
from .dray import STEPS, cycle
from .measure import GIB, size_of
from .table import median


def compare(place, programs, wants, corpora, runs):
    """Medians of CPU per GiB, and B's over A's."""
    print("| what | runs | client A | client B | B/A | least B/A | service A | service B | B/A | wall B/A |\n|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for corpus, v1, v2 in corpora:
        asked = [step for step, name in STEPS.items() if wants(f"{corpus}: {name}")]
        if not asked:
            continue
        taken = ([], [])
        for n in range(runs):
            for side in (0, 1):
                taken[side].append(cycle(place, programs[side], v1, v2, asked, check=n == 0))
        for step in asked:
            raw = size_of(v2 if step == "v2" else v1)[0]
            a, b = ([one[step] for one in side] for side in taken)
            of = lambda samples, key: median(samples, key) / (raw / GIB)
            ratio = lambda key, pick=median: pick(b, key) / (pick(a, key) or float("nan"))
            least = lambda samples, key: min(sample[key] for sample in samples)
            row = {
                "name": f"{corpus}: {STEPS[step]}", "runs": runs, "client": [of(a, "cpu"), of(b, "cpu")], "client_ratio": ratio("cpu"),
                "client_least_ratio": ratio("cpu", least), "service": [of(a, "served"), of(b, "served")], "service_ratio": ratio("served"),
                "wall_ratio": ratio("wall"),
            }
            rows.append(row)
            print(
                f"| {row['name']} | {runs} | {row['client'][0]:.2f} | {row['client'][1]:.2f} | **{row['client_ratio']:.3f}** | {row['client_least_ratio']:.3f} "
                f"| {row['service'][0]:.2f} | {row['service'][1]:.2f} | **{row['service_ratio']:.3f}** | {row['wall_ratio']:.3f} |", flush=True)
    return rows
