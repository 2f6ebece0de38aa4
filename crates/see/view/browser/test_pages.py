"""Pages in a real browser: headless Chromium, driven by Selenium, both Debian's. `make look-test` runs it.

STRATA is the program under test. UPDATE_PICTURES=1 writes the picture in docs anew."""

import base64
import itertools
import json
import os
import struct
import subprocess
import tempfile
import unittest
import zlib
from collections import Counter
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).resolve().parents[4]
STRATA = Path(os.environ.get("STRATA", ROOT / "target/debug/strata")).resolve()
RUN = ["run", "--policy", "base,thp,gemini,aligned", "--memory", "256MiB", "--fragmentation", "0.9",
       "--workload", "random:size=128MiB,accesses=1M"]
# Longest time that drawing the lanes of 10,000 regions may take, in milliseconds: a frame of a film has 40.
# Several frames are allowed since this computer may have other things to do.
SMOOTH = 150


def strata(*words, **options):
    return subprocess.run([STRATA, *words], check=True, capture_output=True, **options)


def pixels(png):
    """Width, height and rows of RGB(A) bytes of a PNG as the browser makes it."""
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 3, 6), "neither as the browser nor as small() makes them"
        if kind == b"PLTE":
            palette = [body[index:index + 3] for index in range(0, len(body), 3)]
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    each = {2: 3, 3: 1, 6: 4}[colour]
    raw, stride = zlib.decompress(data), width * each
    rows, before = [], bytearray(stride)
    for number in range(height):
        begin = number * (stride + 1)
        how, row = raw[begin], bytearray(raw[begin + 1:begin + 1 + stride])
        for i in range(stride):
            left = row[i - each] if i >= each else 0
            corner = before[i - each] if i >= each else 0
            above = before[i]
            if how == 1:
                row[i] = (row[i] + left) & 255
            elif how == 2:
                row[i] = (row[i] + above) & 255
            elif how == 3:
                row[i] = (row[i] + (left + above) // 2) & 255
            elif how == 4:
                guess = left + above - corner
                near = [abs(guess - left), abs(guess - above), abs(guess - corner)]
                row[i] = (row[i] + (left, above, corner)[near.index(min(near))]) & 255
        rows.append(bytes(row))
        before = row
    if colour == 3:
        return width, height, 3, [b"".join(palette[index] for index in row) for row in rows]
    return width, height, each, rows


def small(png):
    """The same picture with a palette of at most 256 colours, of 16 shades of each of the three."""
    width, height, each, rows = pixels(png)
    shade = bytes((value + 8) // 17 * 17 for value in range(256))
    rows = [[row[at:at + 3].translate(shade) for at in range(0, len(row), each)] for row in rows]
    palette = [colour for colour, _ in Counter(itertools.chain(*rows)).most_common(256)]
    near = {colour: index for index, colour in enumerate(palette)}
    for colour in set(itertools.chain(*rows)) - near.keys():
        apart = [sum(abs(a - b) for a, b in zip(colour, other)) for other in palette]
        near[colour] = apart.index(min(apart))
    data = b"".join(b"\0" + bytes(near[colour] for colour in row) for row in rows)
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(
        ">I", zlib.crc32(kind + body))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"PLTE", b"".join(palette))
            + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def coarse(png, across=24, down=24):
    """Mean brightness of the parts of a picture: what is compared, since fonts differ by a hair."""
    width, height, each, rows = pixels(png)
    found = []
    for y in range(down):
        for x in range(across):
            lines = rows[y * height // down:(y + 1) * height // down:3]
            begin, end = x * width // across, (x + 1) * width // across
            part = b"".join(line[begin * each:end * each:each] for line in lines)
            found.append(sum(part) / max(1, len(part)))
    return found


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.room = tempfile.TemporaryDirectory()
        cls.directory = Path(cls.room.name)
        cls.result, cls.page = cls.directory / "run.json", cls.directory / "run.html"
        strata(*RUN, "--json", cls.result, "--html", cls.page)
        cls.browser = cls.start()

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.room.cleanup()

    @classmethod
    def start(cls, *more, scripts=True):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        # A proxy that is not there: whoever asks for anything fails, and that is in the log.
        for word in ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1",
                     "--proxy-server=127.0.0.1:9", "--disable-background-networking",
                     f"--user-data-dir={tempfile.mkdtemp(dir=cls.directory)}", *more]:
            options.add_argument(word)
        if not scripts:
            options.add_experimental_option(
                "prefs", {"profile.managed_default_content_settings.javascript": 2})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        browser.set_window_size(1100, 1000)
        return browser

    def open(self, page, browser=None):
        browser = browser or self.browser
        browser.get_log("performance")
        browser.get_log("browser")
        browser.get(page.as_uri())
        return browser

    def asked(self):
        """Addresses that the page asked for, itself left out."""
        events = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events
                if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def tip(self):
        found = self.one("#tip")
        return found.text if found.is_displayed() else ""

    def hover(self, element):
        """Moves the mouse there, and again: the page may just have been scrolled, which hides what it tells."""
        for step in range(5):
            ActionChains(self.browser).move_to_element_with_offset(element, step % 2, 0).perform()
            if self.tip():
                return

    def in_view(self, element):
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})",
                                    element)
        return element

    def test_every_page_opens_offline_and_asks_for_nothing(self):
        join, paper = self.directory / "join.html", self.directory / "paper.html"
        strata("join", "docs/examples/guest.scan", "docs/examples/host.scan", "--html", join, cwd=ROOT)
        figures = {"scale": 1.0, "partial": False, "title": "A paper", "head": [], "runs": [],
                   "tables": [{"title": "T", "text": [], "columns": ["a", "published", "ours"],
                               "rows": [["x", "1.20", "1.10 (1.00-1.20)"]]}]}
        (self.directory / "paper.json").write_text(json.dumps(figures))
        strata("view", self.directory / "paper.json", "-o", paper)
        hosts = self.directory / "hosts.html"
        strata("run", "--policy", "base,thp", "--alone", "--html", hosts,
               "--vm", "a:memory=128MiB,workload=random:size=16MiB,accesses=100k",
               "--vm", "b:memory=128MiB,workload=sequential:size=16MiB,accesses=100k")
        for page in [self.page, join, paper, hosts]:
            with self.subTest(page.name):
                self.open(page)
                self.assertEqual(self.browser.get_log("browser"), [])
                self.assertEqual(self.asked(), [])
                self.assertGreater(len(self.all("section")), 1)
                # Nothing is wider than the page.
                wide = self.browser.execute_script(
                    "return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                self.assertLessEqual(wide, 0)

    def test_a_usual_page_is_small(self):
        self.assertLess(self.page.stat().st_size, 500_000)

    def test_hovering_tells_what_a_part_is(self):
        self.open(self.page)
        part = max(self.all("#bill svg[data-keys] rect.exits"), key=lambda part: part.rect["width"])
        self.hover(self.in_view(part))
        self.assertRegex(self.tip(), r"base: .*: [0-9.]+[kMG]? cycles, [0-9.]+ %")
        ActionChains(self.browser).move_to_element(self.one("h1")).perform()
        self.assertEqual(self.tip(), "")

    def test_keys_go_from_part_to_part_and_are_read_out(self):
        self.open(self.page)
        picture = self.in_view(self.one("#shares svg[data-keys]"))
        self.browser.execute_script("arguments[0].focus()", picture)
        said = []
        for _ in range(3):
            picture.send_keys(Keys.ARROW_RIGHT)
            said.append(self.tip())
            self.assertEqual(self.one("#live").get_attribute("textContent"), said[-1])
        self.assertEqual(len(set(said)), 3, said)
        picture.send_keys(Keys.ESCAPE)
        self.assertEqual(self.tip(), "")

    def test_every_picture_and_link_is_reached_by_the_tab_key(self):
        self.open(self.page)
        reached = set()
        for _ in range(80):
            ActionChains(self.browser).send_keys(Keys.TAB).perform()
            reached.add(self.browser.execute_script(
                "const e = document.activeElement; return e.getAttribute('aria-label') || e.textContent"))
        for picture in self.all("main section svg[role=img]"):
            self.assertIn(picture.get_attribute("aria-label"), reached)

    def test_a_region_is_linked_through_all_lanes(self):
        self.open(self.page)
        boxes = self.all(".lanes")
        self.assertEqual(len(boxes), 4)
        svg = self.in_view(boxes[3].find_element(By.TAG_NAME, "svg"))
        self.hover(svg)
        said = self.tip()
        for part in ["well aligned", "GVA 0x", "GPA 0x", "GHPA 0x", "HPA 0x", "L1 maps a huge page"]:
            self.assertIn(part, said)
        mark = boxes[3].find_element(By.CSS_SELECTOR, ".at")
        lanes = len(boxes[3].find_elements(By.CSS_SELECTOR, ".lane"))
        self.assertEqual(lanes, 4)
        # The mark is over all of them.
        first, last = [boxes[3].find_elements(By.CSS_SELECTOR, ".lane")[at].rect for at in (0, 3)]
        self.assertLessEqual(mark.rect["y"], first["y"])
        self.assertGreaterEqual(mark.rect["y"] + mark.rect["height"], last["y"] + last["height"])

    def test_the_script_draws_what_the_picture_without_it_shows(self):
        self.open(self.page)
        drawn = self.browser.execute_script(
            "return [...document.querySelectorAll('.lanes .cells')].map(cells => "
            "[...cells.children].map(path => [path.getAttribute('class'), path.getBBox().x, "
            "path.getBBox().y, path.getBBox().width, path.getBBox().height]).sort())")
        static = Pages.start.__func__(type(self), scripts=False)
        try:
            self.open(self.page, static)
            # Without scripts nothing can be measured by one; the driver may still run its own.
            before = static.execute_script(
                "return [...document.querySelectorAll('.lanes .cells')].map(cells => "
                "[...cells.children].map(path => [path.getAttribute('class'), path.getBBox().x, "
                "path.getBBox().y, path.getBBox().width, path.getBBox().height]).sort())")
        finally:
            static.quit()
        self.assertEqual(len(drawn), len(before))
        for ours, theirs in zip(drawn, before):
            self.assertEqual([part[0] for part in ours], [part[0] for part in theirs])
            for one, other in zip(ours, theirs):
                for a, b in zip(one[1:], other[1:]):
                    self.assertAlmostEqual(a, b, delta=0.3)

    def test_it_can_be_read_without_scripts(self):
        browser = self.start(scripts=False)
        try:
            self.open(self.page, browser)
            text = browser.find_element(By.TAG_NAME, "body").text
            for part in ["Verdict", "Region by region", "well aligned", "cycles of all virtual CPUs"]:
                self.assertIn(part, text)
            self.assertFalse(browser.find_element(By.ID, "tools").is_displayed())
            self.assertGreater(len(browser.find_elements(By.CSS_SELECTOR, "svg title")), 20)
            details = browser.find_element(By.CSS_SELECTOR, "#bill details")
            details.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
            self.assertIn("useful work", details.text)
        finally:
            browser.quit()

    def test_ten_thousand_regions_are_drawn_smoothly(self):
        result = json.loads(self.result.read_text())
        regions = result["runs"][0]["regions"]
        columns = regions["columns"]
        rows = []
        for number in range(10_000):
            huge = number % 3 != 0
            row = dict.fromkeys(columns, 512)
            row.update(process=0, gva=4096 + number, count=1, pages=512, cause=-1)
            row["state"] = 1 if huge else 0
            row.update({name: number if huge else -1 for name in columns if name.endswith(".at")})
            row.update({name: 512 if huge else 0 for name in columns if name.endswith(".huge")})
            rows.append([row[name] for name in columns])
        regions["rows"] = rows
        result["runs"] = result["runs"][:1]
        (self.directory / "many.json").write_text(json.dumps(result))
        strata("view", self.directory / "many.json")
        self.open(self.directory / "many.html")
        svg = self.in_view(self.one(".lanes svg"))
        # Zoom in at one end, then move through all of it.
        milliseconds = self.browser.execute_script("""
            const slider = document.querySelector('.lanes input');
            const plus = [...document.querySelectorAll('.lanes button')].find(b => b.textContent === '+');
            for (let n = 0; n < 4; n++) plus.click();
            let longest = 0;
            for (let at = 0; at <= Number(slider.max); at += Number(slider.max) / 50) {
                const begin = performance.now();
                slider.value = at;
                slider.dispatchEvent(new Event('input'));
                document.querySelector('.lanes svg').getBoundingClientRect();
                longest = Math.max(longest, performance.now() - begin);
            }
            return longest;""")
        self.assertLess(milliseconds, SMOOTH)
        self.browser.execute_script("arguments[0].focus()", svg)
        svg.send_keys(Keys.END)
        self.assertIn("Region 10,000", self.tip())

    def test_a_hostile_name_does_nothing(self):
        hostile = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
        result = json.loads(self.result.read_text())
        result["workload"]["name"] = hostile
        for run in result["runs"]:
            run["policy"] = hostile
            run["notes"] = [hostile]
            run["regions"]["causes"] = [[hostile, hostile]]
        (self.directory / "hostile.json").write_text(json.dumps(result))
        strata("view", self.directory / "hostile.json")
        self.open(self.directory / "hostile.html")
        self.assertTrue(self.browser.title.startswith("</script>"))
        self.assertEqual(self.one("h1").text, hostile)
        self.assertEqual(self.all("img"), [])
        self.assertEqual(self.browser.get_log("browser"), [])
        self.assertEqual(self.asked(), [])

    def test_nothing_but_its_own_script_may_run(self):
        self.open(self.page)
        self.browser.execute_script(
            "const s = document.createElement('script'); s.textContent = 'window.owned = 1'; "
            "document.body.append(s)")
        self.assertIsNone(self.browser.execute_script("return window.owned || null"))

    def test_the_json_can_be_had_from_the_page(self):
        self.open(self.page)
        saved = self.browser.execute_async_script("""
            const done = arguments[0];
            URL.createObjectURL = blob => { blob.text().then(done); return '#'; };
            document.getElementById('save').click();""")
        self.assertEqual(saved, self.result.read_text())
        self.in_view(self.one("#show")).click()
        self.assertIn('"strata": 1', self.one("#raw").text)

    def test_the_picture_in_docs_is_what_comes_out(self):
        page = self.directory / "picture.html"
        strata("run", "--policy", "thp,gemini,aligned", "--memory", "256MiB",
               "--fragmentation", "0.5,0.95,0.8", "--workload", "random:size=160MiB,accesses=1M",
               "--html", page)
        self.open(page)
        height = self.browser.execute_script(
            "document.querySelectorAll('nav, .tools, #regions .reading, #regions details, #bill details')"
            ".forEach(part => part.remove()); return document.documentElement.scrollHeight")
        self.browser.set_window_size(1060, height + 200)
        begin, end = self.one("#regions").rect, self.one("#bill").rect
        clip = {"x": begin["x"] - 12, "y": begin["y"], "width": begin["width"] + 24,
                "height": end["y"] + end["height"] - begin["y"] + 12, "scale": 0.8}
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "format": "png"})
        picture = base64.b64decode(shot["data"])
        self.browser.set_window_size(1100, 1000)
        kept = ROOT / "docs/report.png"
        if os.environ.get("UPDATE_PICTURES"):
            kept.write_bytes(small(picture))
        self.assertLess(kept.stat().st_size, 100_000)
        # Fonts of another system are a little wider or narrower.
        apart = [abs(a - b) for a, b in zip(coarse(picture), coarse(kept.read_bytes()))]
        self.assertLess(sum(apart) / len(apart), 4)

    def test_it_looks_alike_in_light_dark_and_on_paper(self):
        self.open(self.page)
        height = self.browser.execute_script("return document.documentElement.scrollHeight")
        self.browser.set_window_size(1100, height + 200)
        light = coarse(self.browser.get_screenshot_as_png())
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        night = coarse(self.browser.get_screenshot_as_png())
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        again = coarse(self.browser.get_screenshot_as_png())
        self.browser.set_window_size(1100, 1000)
        # Not blank, light by day, dark by night, and the same picture the second time.
        self.assertGreater(max(light) - min(light), 30)
        self.assertGreater(sum(light) / len(light), 220)
        self.assertLess(sum(night) / len(night), 60)
        self.assertLess(max(abs(a - b) for a, b in zip(light, again)), 2)
        # What has ink by day has light by night.
        inked = [index for index, part in enumerate(light) if part < 200]
        self.assertGreater(len(inked), 5)
        lit = [index for index in inked if night[index] > 28]
        self.assertGreater(len(lit), len(inked) * 0.8)
        paper = self.browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
        self.assertTrue(base64.b64decode(paper["data"]).startswith(b"%PDF"))


if __name__ == "__main__":
    unittest.main()
