"""The HTML report in headless Chromium: it renders, the slider works, nothing is loaded, all is there without script.

Needs Selenium, Chromium and its driver (Debian: `apt-get install chromium chromium-driver`).
"""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Demo

import tna_onnx
from tna_onnx.report.page import to_html

webdriver = pytest.importorskip("selenium.webdriver")
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
        angle_step=10.0,
        max_ensemble_size=40,
        device="cpu",
        details=True,
    )
    (folder / "report.html").write_text(to_html(report), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture
def browse(page: Path, tmp_path: Path) -> Iterator[Open]:
    """Give a function that opens the report."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))

    def opened(width: int = 1200, scheme: str = "light", *, script: bool = True) -> Any:
        command = browser.execute_cdp_cmd
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        command("Emulation.setDeviceMetricsOverride", size)
        command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        command("Emulation.setScriptExecutionDisabled", {"value": not script})
        browser.get(page.as_uri())
        return browser

    yield opened
    browser.quit()


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


def drag(browser: Any, value: int) -> None:
    script = "const s = arguments[0]; s.value = arguments[1]; s.dispatchEvent(new Event('input'));"
    browser.execute_script(script, browser.find_element("id", "angle"), value)


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


def test_the_slider_moves_the_diagram(browse: Open) -> None:
    browser = browse()
    slider = browser.find_element("id", "angle")
    assert "(chosen)" in browser.find_element("css selector", ".slider output").text
    seen = set()
    for value in (0, 3, int(slider.get_attribute("max"))):
        drag(browser, value)
        (figure,) = shown(browser, ".steps figure")
        text = browser.find_element("css selector", ".slider output").text
        assert text == slider.get_attribute("aria-valuetext") == figure.get_attribute("data-text")
        bars = figure.find_elements("css selector", "rect.accuracy")
        seen.add((text, *(bar.get_attribute("height") for bar in bars)))
    assert len(seen) == 3


def test_the_slider_obeys_the_keyboard(browse: Open) -> None:
    browser = browse()
    drag(browser, 2)
    before = browser.find_element("css selector", ".slider output").text
    browser.find_element("id", "angle").send_keys("\ue014")  # arrow to the right
    after = browser.find_element("css selector", ".slider output").text
    assert before != after
    assert browser.find_element("id", "angle").get_attribute("value") == "3"


def test_hovering_tells_the_count(browse: Open) -> None:
    browser = browse()
    mark = browser.find_element("css selector", "#reliability .mark .hit-area")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    webdriver.ActionChains(browser).move_to_element(mark).perform()
    assert "samples" in browser.find_element("id", "tip").text


def test_drawings_have_names_and_descriptions(browse: Open) -> None:
    browser = browse()
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    images = [n for n in tree if n.get("role", {}).get("value") in ("image", "img") and not n.get("ignored")]
    assert len(images) > 10
    assert all(n["name"]["value"] for n in images)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browse: Open, scheme: str) -> None:
    script = "return getComputedStyle(document.documentElement).getPropertyValue('--' + arguments[0]).trim()"
    browser = browse(scheme=scheme)
    names = ["paper", "panel", "ink", "soft", "before", "after", "third", "good", "bad", "bar", "gap", "slack"]
    colours = {name: browser.execute_script(script, name) for name in names}
    for name in ("ink", "soft", "before", "after", "third", "good", "bad"):
        assert contrast(colours[name], colours["paper"]) >= 4.5, name  # WCAG 2 AA for text
        assert contrast(colours[name], colours["panel"]) >= 4.5, name
    for name in ("bar", "gap", "slack"):
        assert contrast(colours[name], colours["paper"]) >= 2, name  # areas; hover and tables have the numbers


def contrast(one: str, other: str) -> float:
    """Contrast of two colours #rrggbb by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_all_is_there_without_script(browse: Open) -> None:
    browser = browse(script=False)
    pixels = screenshot(browser)
    assert all(part.std() > 5 for part in np.array_split(pixels, 8))
    assert shown(browser, ".slider") == []
    figures = browser.find_elements("css selector", ".steps figure")
    assert len(shown(browser, ".steps figure")) == len(figures) > 5


def test_it_prints(browse: Open) -> None:
    browser = browse(scheme="dark")
    found = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert found.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert np.median(screenshot(browser)) > 240  # white paper, whatever the screen's scheme
    assert shown(browser, ".slider") == []
    assert len(shown(browser, ".steps figure")) == 1
