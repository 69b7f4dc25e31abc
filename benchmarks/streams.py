"""ClAMCRP over chunks of a stream against the fit to all rows at once.

ISTHMUS_DATA=path/to/npz/files python benchmarks/streams.py
"""

from __future__ import annotations

import warnings

from sklearn.metrics import adjusted_rand_score

from isthmus.cluster import ClAMCRP
from isthmus.paper.study.runner import prepare

ROWS = 58_000


def main() -> None:
    warnings.simplefilter("ignore")  # about convergence
    print("| dataset | chunk | clusters of the stream | of the batch fit | ARI between them |")
    print("|---|---|---|---|---|")
    for name in ("forest_covertype", "kdd_cup"):
        rows = prepare(name, ROWS).X
        whole = ClAMCRP(random_state=0).fit(rows)
        for size in (2000, 5000):
            stream = ClAMCRP(random_state=0)
            for start in range(0, len(rows), size):
                stream.partial_fit(rows[start : start + size])
            score = adjusted_rand_score(whole.labels_, stream.predict(rows))
            found = f"{stream.n_clusters_} | {whole.n_clusters_} | {score:.2f}"
            print(f"| {name} | {size:,} | {found} |", flush=True)


if __name__ == "__main__":
    main()
