"""The page of scripts/report.py in headless Chromium without a network: charts, sorting, hover and switches work without
requests or errors, on a desktop and on a phone, light and dark. SCREENSHOTS=DIR keeps pictures.
Usage: browser_test.py SPEEDRUN [MPIEXEC]. Skipped (77) without Chromium or the packages of scripts/requirements.txt."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from devtools import Browser, find_chromium
from made_runs import SCRIPTS, make_record, make_runs, require

require("plotly")
CHROMIUM = find_chromium()
if CHROMIUM is None:
    print("skipped: no chromium on PATH (Debian's package chromium)")
    sys.exit(77)

READY = "document.documentElement?.dataset.ready === 'true'"
SCREENSHOTS = os.environ.get("SCREENSHOTS")


class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        work = Path(cls.temporary.name)
        cls.logs = make_runs(sys.argv[1], work, sys.argv[2] if len(sys.argv) > 2 else "")
        track = work / "records" / "toy"
        runs = {name: [cls.logs / f"{name}-s{seed}" for seed in (1, 2)] for name in ("narrow", "wide")}
        make_record(track, "ant", runs["narrow"], runs["wide"])
        cls.pages = {"runs": work / "runs.html", "track": work / "track.html"}
        for source, page in ((cls.logs, cls.pages["runs"]), (track, cls.pages["track"])):
            subprocess.run(
                [sys.executable, str(SCRIPTS / "report.py"), str(source), "--out", str(page), "--speedrun", sys.argv[1]],
                capture_output=True,
                check=True,
            )
        cls.browser = Browser(CHROMIUM)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.temporary.cleanup()

    def open(self, page: str, width: int = 1360, scheme: str = "light"):
        self.browser.events.clear()
        self.browser.size(width, 900, phone=width < 600)
        self.browser.scheme(scheme)
        self.browser.open(self.pages[page], READY)
        self.page = page
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.browser.screenshot(Path(SCREENSHOTS) / f"{page}_{width}_{scheme}.png")

    def tearDown(self):
        """After each test: no request except the page itself, no message, no exception."""
        self.browser.value("1")  # previous events have arrived when this is answered
        requests = [e["params"]["request"]["url"] for e in self.browser.events if e["method"] == "Network.requestWillBeSent"]
        self.assertEqual([url for url in requests if not url.startswith("data:")], [self.pages[self.page].resolve().as_uri()])
        complaints = [
            e
            for e in self.browser.events
            if e["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        ]
        self.assertEqual(complaints, [])

    def count(self, selector: str) -> int:
        return self.browser.value(f"document.querySelectorAll({json.dumps(selector)}).length")

    def column(self, table: str, index: int) -> list[str]:
        return self.browser.value(
            f"[...document.querySelectorAll('#{table} tbody tr')].map(r => r.cells[{index}].textContent.trim())"
        )

    def middle_of(self, expression: str) -> tuple[float, float]:
        """Returns the position of an element, scrolled into view."""
        return tuple(
            self.browser.value(
                f"(async () => {{ const e = {expression}; e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
                "await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));"
                "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
            )
        )

    def click(self, expression: str):
        self.browser.click(*self.middle_of(expression))

    def test_charts_draw(self):
        self.open("runs")
        for chart in ("loss-time", "loss-tokens"):
            lines = self.browser.value(
                f"[...document.querySelectorAll('#{chart} .scatterlayer path.js-line')].map(p => p.getAttribute('d').length)"
            )
            self.assertGreaterEqual(len(lines), 12)  # training and validation of 4 runs and of 2 means
            self.assertGreater(min(lines), 20)
            self.assertGreaterEqual(self.count(f"#{chart} .scatterlayer .points path"), 3 * 6)
            self.assertEqual(self.count(f"#{chart} .shapelayer path"), 1)  # the target
        self.assertGreaterEqual(self.count("#step-times .violinlayer path.violin"), 2)
        self.assertGreaterEqual(self.count("#where .barlayer .point path"), 2 * 3)
        self.assertEqual(self.count("#overlap .barlayer .point path"), 4 if len(sys.argv) > 2 else 0)
        # No button that sends a chart to a server: Plotly has one by default.
        titles = self.browser.value("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
        self.assertIn("Zoom", titles)
        self.assertEqual([title for title in titles if "hare" in title or "loud" in title], [])

    def test_a_click_on_a_heading_sorts(self):
        self.open("runs")
        heads = self.browser.value("[...document.querySelectorAll('#runs th')].map(h => h.textContent)")
        for title, number in (("validation loss [nats/token]", True), ("run", False), ("training time [s]", True)):
            index = heads.index(title)
            head = f"document.querySelectorAll('#runs th')[{index}]"
            for direction in ("ascending", "descending"):
                self.click(f"{head}.querySelector('button')")
                self.assertEqual(self.browser.value(f"{head}.ariaSort"), direction)
                self.assertEqual(self.count("#runs th[aria-sort$=ending]"), 1)
                keys = self.browser.value(
                    f"[...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[{index}].dataset.key)"
                )
                values = [float(key) for key in keys] if number else keys
                self.assertEqual(values, sorted(values, reverse=direction == "descending"))
        self.assertEqual(len(set(self.column("runs", 0))), len(self.column("runs", 0)))

    def test_hover_tells_the_point(self):
        self.open("runs")
        self.click("document.querySelector('button[data-kind=val]')")  # hides training curves near the point
        self.browser.wait_for(
            "document.getElementById('loss-time').data.filter(t => t.visible).every(t => t.meta.kind === 'val')"
        )
        # The last drawn curve (the mean of the last config with several runs, or a single run), at its last point.
        name, loss = self.browser.value(
            "(t => [t.name, t.y.at(-1)])(document.getElementById('loss-time').data.filter(t => t.visible).at(-1))"
        )
        x, y = self.middle_of(
            "[...document.querySelectorAll('#loss-time .scatterlayer .trace')].at(-1).querySelector('.points path:last-child')"
        )
        self.browser.mouse("mouseMoved", x, y)
        # The pointer may have passed other points.
        told = "document.querySelector('#loss-time .hoverlayer .hovertext')?.textContent"
        text = self.browser.wait_for(f"({told} || '').includes('{loss:.4f}') && {told}")
        for words in (name.removesuffix(", validation"), "validation loss", "nats per token", "s of training", "tokens, step "):
            self.assertIn(words, text)
        x, y = self.middle_of("document.querySelector('#where .barlayer .point path')")
        self.browser.mouse("mouseMoved", x, y)
        text = self.browser.wait_for("document.querySelector('#where .hoverlayer .hovertext')?.textContent")
        self.assertIn("forward and backward", text)
        self.assertIn("ms per step", text)

    def test_switches(self):
        self.open("runs")
        drawn = "document.querySelectorAll('#loss-time .scatterlayer .trace').length"
        everything = self.browser.value(drawn)
        self.click("document.querySelector('button[data-kind=val]')")
        self.browser.wait_for(f"{drawn} === {everything // 2}")
        self.assertEqual(self.count("#step-times .violinlayer .trace"), self.count("button[data-group]"))
        self.click("document.querySelector('button[data-kind=both]')")
        self.browser.wait_for(f"{drawn} === {everything}")
        violins = self.count("#step-times .violinlayer .trace")
        self.click("document.querySelector('button[data-group]')")
        self.browser.wait_for(f"{drawn} < {everything}")
        self.browser.wait_for(f"document.querySelectorAll('#step-times .violinlayer .trace').length === {violins - 1}")
        self.assertEqual(self.browser.value("document.querySelector('button[data-group]').ariaPressed"), "false")
        self.click("document.querySelector('button[data-group]')")
        self.browser.wait_for(f"{drawn} === {everything}")

    def test_track(self):
        self.open("track")
        self.assertEqual(self.column("records", 0), ["ant"])
        self.assertEqual(
            self.browser.value("[...document.querySelectorAll('button[data-group]')].map(b => b.ariaPressed)"),
            ["true", "false"],
        )
        drawn = "document.querySelectorAll('#loss-time .scatterlayer .trace').length"
        self.browser.wait_for(f"{drawn} === 6")  # the button adds the baseline
        self.click("document.querySelector('button[data-group=\"1\"]')")
        self.browser.wait_for(f"{drawn} === 12")

    def test_phone(self):
        self.open("runs", width=390)
        self.assertLessEqual(
            self.browser.value("document.documentElement.scrollWidth"), 390
        )  # tables scroll within their frames
        widths = self.browser.value("[...document.querySelectorAll('.chart')].map(c => c.getBoundingClientRect().right)")
        self.assertLessEqual(max(widths), 390)
        self.assertGreater(
            self.browser.value("document.querySelector('#loss-time .nsewdrag').getBoundingClientRect().width"), 200
        )

    def test_dark(self):
        self.open("runs", scheme="dark")
        page = "getComputedStyle(document.body).backgroundColor"
        label = "getComputedStyle(document.querySelector('#loss-time .xtick text')).fill"
        dark, light_label = self.browser.value(page), self.browser.value(label)
        self.browser.scheme("light")  # while the page is open: charts must follow
        self.browser.wait_for(f"{label} !== {json.dumps(light_label)}")
        self.assertNotEqual(self.browser.value(page), dark)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
