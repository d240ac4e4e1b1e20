r"""Measure how soon the page of `hf-tlm export --page` answers, in a real Chromium on this machine, and in real time.

    hf-tlm export --model_name_or_path runs/models/scierc --output_dir runs/scierc-onnx --page runs/page
    python benchmarks/page.py --page runs/page

A new Chromium with an empty profile opens the page from a plain server on loopback. A text of about thirty tokens is typed
as soon as the page is ready, or, in other visits, a second later. Seconds are counted from opening the page, by the
page's own clock. Writes benchmarks/results/page.json and .md. If other programs run meanwhile, `chrt -r 1 taskset -c 0
python benchmarks/page.py ...` reserves one core for it, as root.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from statistics import median

from results_file import ROOT, ResultsFile

TEXT = "We propose a method for parsing sentences, and compare it with others on two corpora. It is faster than they are."
PAUSES = {"at once": 0, "after a second": 1000}
SECTIONS = {"page": "From opening the page to its first answer"}
NOTES = {
    "page": (
        "Medians of visits, each of a new browser with an empty profile, over loopback, on so many cores. Ready, answered: "
        "seconds from opening the page. A text comes as soon as the page is ready, or a second later, when the runtime has "
        "compiled itself."
    )
}
# Acts like a user, with timing; the page's policy lets it send data only to its own server.
PERSON = """
const at = (id) => document.getElementById(id), pause = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (test) => { while (!test()) await pause(5); };
await until(() => document.body.dataset.ready);
const ready = performance.now();
await pause(PAUSE);
const typed = performance.now();
at("text").value = TEXT;
at("text").dispatchEvent(new Event("input"));
await until(() => at("bars").children.length);
const answered = performance.now();
let [runtime, others] = [0, 0];
for (const { name, encodedBodySize } of performance.getEntriesByType("resource"))
  if (name.endsWith(".wasm")) runtime += encodedBodySize;
  else others += encodedBodySize;
const state = document.body.dataset.ready;
await fetch("measured", { method: "POST", body: JSON.stringify({ state, ready, typed, answered, runtime, others }) });
"""


def visit(page: Path, browser: str, pause: int, limit: float) -> dict:
    """Visit the page once, and return what it measured.

    Raises:
        SystemExit: it did not become ready in `limit` seconds.
    """
    measured: queue.Queue = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(work / "page"))

        def log_message(self, *args):
            pass

        def do_POST(self):
            measured.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        work = Path(scratch)
        shutil.copytree(page, work / "page")
        (work / "page/person.js").write_text(PERSON.replace("PAUSE", str(pause)).replace("TEXT", json.dumps(TEXT)))
        index = (work / "page/index.html").read_text(encoding="utf-8")
        person = '<script type="module" src="person.js"></script></body>'
        (work / "page/index.html").write_text(index.replace("</body>", person), encoding="utf-8")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        options += [f"--user-data-dir={work / 'profile'}", "--remote-debugging-port=0"]
        command = [browser, *options, f"http://127.0.0.1:{server.server_port}/index.html"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            found = measured.get(timeout=limit)
        except queue.Empty:
            raise SystemExit(f"The page was not ready after {limit:g} s.") from None
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
            server.server_close()
    assert found["state"] == "true", "the page could not load its model"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", required=True, help="folder that `hf-tlm export --page` wrote")
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a visit may take")
    parser.add_argument("--results_dir", default=str(ROOT / "benchmarks" / "results"))
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("No Chromium is on the PATH.")
    rows = []
    for name, pause in PAUSES.items():
        visits = [visit(Path(options.page), browser, pause, options.limit) for _ in range(options.visits)]
        middle = {key: median(one[key] for one in visits) for key in ("ready", "runtime", "others")}
        waited = median(one["answered"] - one["typed"] for one in visits)
        rows.append(
            {
                "text": name,
                "visits": len(visits),
                "ready s": middle["ready"] / 1000,
                "answered s": None if pause else median(one["answered"] for one in visits) / 1000,
                "ms from text to answer": waited,
                "MB": middle["others"] / 1e6,
                "MB of runtime": middle["runtime"] / 1e6,
                "cores": len(os.sched_getaffinity(0)),
            }
        )
    file = ResultsFile(options.results_dir, "page", SECTIONS, NOTES)
    file.add("page", rows)
    print("\n" + file.to_text())


if __name__ == "__main__":
    main()
