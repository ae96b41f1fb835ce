"""The HTML report in headless Chromium: it renders, the slider works, nothing is loaded, all is there without script.

Needs Selenium (the extra `browser`), Chromium and its driver (Debian: `apt-get install chromium chromium-driver`).
"""

import base64
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Demo
from tna_onnx.render.html.pages import page_of

webdriver = pytest.importorskip("selenium.webdriver")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
image = pytest.importorskip("PIL.Image")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def page(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a quick run on the demo."""
    folder = tmp_path_factory.mktemp("page")
    report = tna_onnx.calibrate(
        demo.model,
        demo.calib,
        eval=demo.test,
        output=folder / "o.onnx",
        device="cpu",
        details=True,
        settings=tna_onnx.Settings(angle_step=10.0, ensemble_size=10),
    )
    (folder / "report.html").write_text(page_of(report), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start Chromium; it serves all tests."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser') / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def browse(browser: Any, page: Path) -> Open:
    """Return a function that opens the report anew."""

    def opened(width: int = 1200, scheme: str = "light", *, script: bool = True) -> Any:
        command = browser.execute_cdp_cmd
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        command("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command("Emulation.setEmulatedMedia", {"media": "", "features": features})
        command("Emulation.setScriptExecutionDisabled", {"value": not script})
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # forgets what was there
        browser.get("about:blank")  # or the page that is open already may count as loaded
        browser.get(page.as_uri())
        WebDriverWait(browser, 30).until(lambda it: it.find_elements("css selector", "footer"))
        return browser

    return opened


def screenshot(browser: Any, whole: bool = True) -> np.ndarray:
    """Return the pixels of the page, (H, W, 3)."""
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    options = {"captureBeyondViewport": True, "clip": clip} if whole else {}
    found = browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    with image.open(io.BytesIO(base64.b64decode(found))) as opened:
        return np.asarray(opened.convert("RGB"))


def shown(browser: Any, selector: str) -> list[Any]:
    return [element for element in browser.find_elements("css selector", selector) if element.is_displayed()]


def accessible(browser: Any) -> list[dict[str, Any]]:
    """Return what a screen reader gets, once the browser has made it."""

    count = 0

    def nodes(_: Any) -> list[dict[str, Any]] | None:
        nonlocal count
        found = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        before, count = count, len(found)  # on a busy machine, parts of a page come later
        whole = before == count and any(n.get("role", {}).get("value") == "contentinfo" for n in found)
        return found if whole else None

    browser.execute_cdp_cmd("Accessibility.enable", {})
    return WebDriverWait(browser, 20).until(nodes)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
@pytest.mark.parametrize("width", [1200, 390])
def test_it_renders_without_complaint(browse: Open, scheme: str, dark: bool, width: int) -> None:
    browser = browse(width, scheme)
    assert browser.get_log("browser") == []
    pixels = screenshot(browser)
    assert pixels.shape[0] > 2000
    assert (np.median(pixels) < 60) == dark  # the paper
    for part in np.array_split(pixels, 8):
        assert part.std() > 5  # no eighth of the page is blank
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_it_loads_nothing(browse: Open, page: Path) -> None:
    events = [json.loads(entry["message"])["message"] for entry in browse().get_log("performance")]
    asked = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    urls = [a["request"]["url"] for a in asked if a["documentURL"] == page.as_uri()]  # the browser has pages of its own
    assert page.as_uri() in urls
    assert [url for url in urls if url != page.as_uri() and not url.startswith("data:")] == []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browse: Open) -> None:
    browser = browse()
    reached = []
    for _ in range(60):
        webdriver.ActionChains(browser).send_keys("\ue004").perform()
        found = browser.execute_script(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.tagName, e.id || e.className, s.outlineStyle, parseFloat(s.outlineWidth)]"
        )
        if found[0] == "BODY":
            break
        reached.append(found)
    assert reached[0][:2] == ["A", "skip"]
    assert {tag for tag, *_ in reached} >= {"A", "SUMMARY", "INPUT"}
    assert all(style != "none" and width >= 1 for _, _, style, width in reached)


def test_landmarks_headings_and_names_of_drawings(browse: Open) -> None:
    browser = browse()
    tree = accessible(browser)
    roles = [n["role"]["value"] for n in tree if not n.get("ignored") and "role" in n]
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(role) == 1
    named = [n for n in tree if not n.get("ignored") and n.get("role", {}).get("value") in ("region", "slider")]
    assert all(n["name"]["value"] for n in named)
    images = [n for n in tree if n.get("role", {}).get("value") in ("image", "img") and not n.get("ignored")]
    assert len(images) >= 5
    assert all(n["name"]["value"] for n in images)
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))"
    )
    assert levels.count(1) == 1
    assert all(new <= old + 1 for old, new in itertools.pairwise(levels))  # none is skipped
    assert browser.execute_script(
        "return [...document.querySelectorAll('table')].every((t) => t.caption"
        " && t.querySelector('thead th[scope=col]') && [...t.tBodies[0].rows].every((r) => r.cells[0].scope === 'row'))"
    )


def test_a_small_screen_gets_six_screens_and_unfolds_what_a_link_leads_to(browse: Open) -> None:
    browser = browse(390)
    height = "return document.documentElement.scrollHeight"
    assert browser.execute_script(height) <= 6 * 844
    assert not shown(browser, "#samples ul")
    browser.execute_script("document.querySelector('nav a[href=\"#samples\"]').click()")
    WebDriverWait(browser, 10).until(lambda it: shown(it, "#samples ul"))


def test_a_reliability_diagram_begins_with_bars_diagonal_and_band(browse: Open) -> None:
    browser = browse()
    rest = [f"#reliability .simple {mark}" for mark in ("rect.over", ".whisker", ".line.fit")]
    assert shown(browser, "#reliability .simple rect.accuracy")
    assert not any(shown(browser, mark) for mark in rest)
    browser.find_element("css selector", ".simple .all").click()
    assert all(shown(browser, mark) for mark in rest)


def test_hovering_tells_the_count(browse: Open) -> None:
    browser = browse()
    mark = browser.find_element("css selector", "#reliability .mark .hit-area")
    script = """
      arguments[0].scrollIntoView({block: "center"});
      requestAnimationFrame(() => requestAnimationFrame(arguments[1]));
    """
    browser.execute_async_script(script, mark)  # scrolling hides what hovering shows, so let it end
    webdriver.ActionChains(browser).move_to_element(mark).perform()
    assert "samples" in browser.find_element("id", "tip").text


def test_all_is_there_without_script(browse: Open) -> None:
    browser = browse(script=False)
    pixels = screenshot(browser)
    assert all(part.std() > 5 for part in np.array_split(pixels, 8))
    # nothing is folded away that a script would have to open
    folds = browser.find_elements("css selector", "details.fold")
    assert len(folds) > 3
    assert all(fold.get_attribute("open") for fold in folds)


def test_it_prints(browse: Open) -> None:
    browser = browse(scheme="dark")
    found = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert found.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert np.median(screenshot(browser)) > 240  # white paper, whatever the screen's scheme


def test_a_head_sorts_the_table_of_classes(browse: Open) -> None:
    browser = browse()
    column = "return [...document.querySelectorAll('table.sortable tbody tr')].map((row) => row.cells[4].textContent)"
    head = browser.find_elements("css selector", "table.sortable thead th")[4]
    for order, reverse in (("ascending", False), ("descending", True)):
        browser.execute_script("arguments[0].querySelector('button').click()", head)
        assert head.get_attribute("aria-sort") == order
        recalls = [float(text) for text in browser.execute_script(column)]
        assert recalls == sorted(recalls, reverse=reverse)
    assert len(recalls) == 10


def test_every_table_can_be_had_as_csv(browse: Open) -> None:
    browser = browse()
    script = """
      const done = arguments[0];
      URL.createObjectURL = (blob) => { blob.text().then(done); return "data:,"; };
      document.querySelector(".metrics .csv").click();
    """
    text = browser.execute_async_script(script)
    assert text.splitlines()[0].lstrip("\ufeff").startswith('"","before","after","difference')
    assert len(text.splitlines()) == 1 + 6
    tables = browser.find_elements("css selector", ".scroll table")
    assert len(browser.find_elements("css selector", ".csv")) == len(tables)
