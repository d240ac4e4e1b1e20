"""The page in a real browser: no errors and no requests; search, sorting and colours work."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import pytest

from hf_tlm.analysis import write_report
from support.report_runs import EVIL, text_task, tlm_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="THE REPORT IS NOT TESTED IN A BROWSER: no chromium on the PATH")

# Appended to a copy of the page: acts like a user, and records what is then visible.
DRIVER = """
<script>
const seen = {}, table = document.getElementById("errors-1"), search = document.getElementById("errors-1-search");
const visible = () => [...table.tBodies[0].rows].filter(row => row.getClientRects().length);
const rows = () => visible().map(row => row.cells[0].textContent);
const type = text => { search.value = text; search.dispatchEvent(new Event("input")); return rows(); };
const press = column => { table.tHead.rows[0].cells[column].querySelector("button").click(); return rows(); };
const paper = () => getComputedStyle(document.body).backgroundColor;
seen.all = rows();
seen.two_words = type("NUMBER  10");
seen.count = search.parentElement.querySelector("output").textContent;
seen.nothing = type("no such text");
seen.again = type("");
seen.numbers_down = press(4);
seen.numbers_up = press(4);
seen.state = table.tHead.rows[0].cells[4].getAttribute("aria-sort");
seen.names_up = press(0);
seen.before = paper();
document.getElementById("theme").click();
seen.after = paper();
seen.back = (document.getElementById("theme").click(), paper());
seen.too_wide = document.documentElement.scrollWidth - innerWidth;
seen.table_scrolls = table.parentElement.scrollWidth > table.parentElement.clientWidth;
seen.requests = performance.getEntriesByType("resource").length;
seen.title = document.title;
const result = document.createElement("pre");
result.id = "seen";
result.textContent = JSON.stringify(seen);
document.body.append(result);
</script>
"""


def browse(page, tmp_path):
    """Open the page in a window as narrow as a phone's; return what the driver saw, and the console."""
    file = tmp_path / "driven.html"
    digest = base64.b64encode(hashlib.sha256(DRIVER.split("script>")[1].removesuffix("</").encode()).digest()).decode()
    assert page.count("script-src 'sha256-") == 1  # The page's policy only allows its own scripts: allow the driver too.
    page = page.replace("script-src '", f"script-src 'sha256-{digest}' '")
    file.write_text(page, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,800", "--enable-logging=stderr", "--v=0"]
    options += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120, encoding="utf-8"
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    name = EVIL.replace("\ud800", "").replace("\x00", "")
    rows = [(f"{name} number {at}", ("<i>x", "y")[at % 2]) for at in range(12)]
    task = text_task(dict.fromkeys(("train", "validation", "test"), rows))
    run = tlm_run(folder / "run", task, {0: {2, 7, 10, 11}, 1: {7}}, [0.9, 0.5])
    return write_report(run, folder / "report.html", task=task).read_text(encoding="utf-8")


def test_page_works_in_chromium(page, tmp_path):
    seen, console = browse(page + DRIVER, tmp_path)
    assert console == []
    ids = [f"validation-{at}" for at in (2, 7, 10, 11)]
    assert seen["all"] == ids[::-1]  # The most confident errors first.
    assert seen["two_words"] == ["validation-10"] and seen["count"] == "1 of 4 rows"
    assert seen["nothing"] == [] and seen["again"] == seen["all"]
    assert seen["numbers_down"] == ids[::-1] and seen["numbers_up"] == ids and seen["state"] == "ascending"
    assert seen["names_up"] == ids  # 2 before 10: numbers in names are sorted by value.
    assert seen["before"] == seen["back"] != seen["after"]
    assert seen["too_wide"] <= 0 and seen["table_scrolls"]
    assert seen["requests"] == 0 and seen["title"] == "toy: TLM (run)"


def test_requests_would_be_noticed(page, tmp_path):
    """The page's policy refuses an image and a script of another address, and the console says so."""
    loads = '<img src="http://127.0.0.1:9/x.png"><script src="http://127.0.0.1:9/x.js"></script>'
    _, console = browse(page.replace("</body>", loads + "</body>") + DRIVER, tmp_path)
    assert sum("violates the following Content Security Policy" in line for line in console) == 2
