"""The HTML report: its numbers against their definitions, and a page that is whole, self-contained and safe."""

import html
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

import tna_onnx
from tests.conftest import Demo, Small
from tests.pipeline.samples import scores_of
from tests.render.conftest import SEARCHED
from tests.support import PLAIN, TILTED, ece, ok, outputs_of, with_options
from tna_onnx.render.html import predictions
from tna_onnx.render.html.pages import page_of
from tna_onnx.results.details import Bins, RiskCoverage
from tna_onnx.results.report import Report


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return page_of(report, "tna-onnx calibrate 'a b.onnx'")


# Numbers


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=20, max_size=60), st.integers(1, 20))
def test_bins_give_the_ece(samples: list[tuple[float, bool]], bins: int) -> None:
    confidence, hit = zip(*samples, strict=True)
    scores = scores_of(list(confidence), list(hit))
    found = Bins.of(scores.confidence, scores.hit, bins)
    assert sum(found.count) == len(samples)
    assert found.ece == pytest.approx(ece(scores, bins), abs=1e-12)  # the same float64 sums, divided and multiplied


def test_risk_coverage_by_hand() -> None:
    curve = RiskCoverage.of(scores_of([0.5, 0.9, 0.9, 0.7], [False, True, False, True]))
    assert curve.coverage == (0.5, 0.75, 1.0)  # the two samples of one confidence come together
    assert curve.risk == pytest.approx((1 / 2, 1 / 3, 2 / 4))
    assert curve.area == pytest.approx(0.5 * 1 / 2 + 0.25 * 1 / 3 + 0.25 * 2 / 4)
    assert RiskCoverage.of(scores_of([0.5, 0.9, 0.9000001, 0.7], [False, True, False, True])) == curve


def test_a_long_risk_coverage_curve_keeps_its_ends_and_its_area() -> None:
    rng = np.random.default_rng(0)
    scores = scores_of(rng.uniform(size=5000).tolist(), (rng.uniform(size=5000) < 0.8).tolist())
    curve = RiskCoverage.of(scores)
    assert len(curve.coverage) <= 200
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - scores.hit.mean())
    order = np.argsort(-scores.confidence)
    assert curve.area == pytest.approx(np.mean(np.cumsum(~scores.hit[order]) / np.arange(1, 5001)), abs=1e-3)


def test_details_agree_with_the_report(report: Report) -> None:
    details = report.details
    assert details.held_out
    assert details.before.ece == pytest.approx(report.comparison.before.ece, abs=1e-12)
    assert details.after.ece == pytest.approx(report.comparison.after.ece, abs=1e-12)
    assert details.risk_before.risk[-1] == pytest.approx(1 - report.comparison.before.accuracy)
    original = details.steps[0]
    assert original.angle == 0
    # features times weight in place of the file: logits to about 60 in float32, a sample may cross a border of bins
    assert original.held_out.objective == pytest.approx(report.comparison.before.ece, abs=2e-3)
    assert details.steps[details.chosen].angle == report.angle
    assert [s.calibration.objective for s in details.steps] == [point.objective for point in report.curve]
    for k in details.classes:
        assert sum(k.before.count) == sum(k.after.count) == report.comparison.before.n
    assert sum(k.samples for k in details.classes) == report.comparison.before.n
    assert all(change.explained for change in details.changes)
    assert {change.name for change in details.changes} >= {"weight"}


def test_held_out_steps_are_those_of_a_run_on_the_file(small: Small, tmp_path: Path) -> None:
    report = with_options(
        tna_onnx.calibrate,
        small.model,
        small.calib,
        eval=small.test,
        output=tmp_path / "o",
        details=True,
        **SEARCHED | {"map": "none"},
    )
    details = report.details
    assert details.steps[details.chosen].shown.accuracy == pytest.approx(report.comparison.after.accuracy, abs=1e-3)
    assert details.steps[details.chosen].shown.objective == pytest.approx(report.comparison.after.ece, abs=2e-3)


def test_samples_are_what_their_lists_say(report: Report, small: Small) -> None:
    details, labels = report.details, np.load(small.test)["labels"]
    assert all(s.label == str(labels[s.row]) for s in (*details.overconfident, *details.underconfident))
    assert all(s.label != s.predicted for s in details.overconfident)
    assert all(s.label == s.predicted for s in details.underconfident)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "held_out"),
    [
        ({"search": "none"}, False),
        ({"search": "complete", "max_accuracy_drop": 5.0}, True),
        ({"map": "aar"}, False),
        ({"map": "isotonic"}, True),
        ({"map": "none", "objective": "nll"}, False),
    ],
    ids=str,
)
def test_every_kind_of_run_has_a_page(small: Small, tmp_path: Path, options: dict[str, object], held_out: bool) -> None:
    data = small.test if held_out else None
    report = with_options(
        tna_onnx.calibrate, small.model, small.calib, eval=data, output=tmp_path / "o", details=True, **TILTED | options
    )
    page = page_of(report)
    check_page(page)
    assert ('id="search"' in page) == (report.angle != 0)
    assert report.details.held_out == held_out


# The page


class Checker(HTMLParser):
    """Collects what a page must not have."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [found["id"] or ""] if "id" in found else []
        for name in ("src", "href"):
            value = found.get(name) or "data:"
            self.links += [value[1:]] if value.startswith("#") else []
            if not value.startswith(("data:", "#")):
                self.problems.append(f"loads {value}")
        if tag == "img" and not found.get("alt"):
            self.problems.append("an image without alt")
        self.problems += [f"handler {name}" for name in found if name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")


def check_page(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.problems == []
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert set(checker.links) <= set(checker.ids)
    assert not re.search(r"https?://|@import|url\(|\bnan\b|\bNone\b", re.sub(r"data:[^\"]*", "", page))
    for drawing in re.findall(r'<svg class="chart".*?</desc>', page, re.DOTALL):
        assert re.search("<title>.+</title><desc>.+</desc>", drawing)


def test_the_page_is_whole(page: str, report: Report) -> None:
    check_page(page)
    for key in ("result", "reliability", "confidence", "search", "samples", "changes", "run"):
        assert f'<section id="{key}"' in page
    assert "tna-onnx calibrate " + escape("'a b.onnx'") in page
    for text in (report.model_sha256, report.provider, *report.versions.values(), "Seed", "held-out"):
        assert text in page
    assert page_of(report, "tna-onnx calibrate 'a b.onnx'") == page


def test_text_from_outside_is_escaped(report: Report) -> None:
    evil = "<script>alert(1)</script>\"'&"
    details = report.details
    classes = tuple(replace(k, name=evil) for k in details.classes)
    samples = tuple(replace(s, label=evil, predicted=evil, file=evil) for s in details.overconfident)
    data = replace(report.comparison, data=evil)
    page = page_of(
        replace(
            report,
            model=evil,
            head=evil,
            output=evil,
            notes=(evil,),
            provider=evil,
            comparison=data,
            preprocessing={evil: evil},
            details=replace(details, classes=classes, overconfident=samples, data=evil),
        ),
        evil,
    )
    assert page.count("<script>") == 1
    check_page(page)


def section_of(page: str, name: str) -> str:
    return page[page.index(f'<section id="{name}"') :].split("</section>", maxsplit=1)[0]


def test_the_table_of_classes_counts_what_the_file_predicts(report: Report, small: Small, page: str) -> None:
    """Recall, precision and confusions against a run of the written file."""
    data = np.load(small.test)
    predicted = np.argmax(outputs_of(report.output, data["x"])["logits"], axis=1)
    labels = data["labels"]
    for c, found in enumerate(report.details.classes):
        assert found.result_after.predicted == np.sum(predicted == c)
        assert found.result_after.right == np.sum((predicted == c) & (labels == c))
        wrong = np.bincount(predicted[(labels == c) & (predicted != c)], minlength=report.classes)
        assert [each.samples for each in found.result_after.confused] == sorted(wrong[wrong > 0].tolist())[:-4:-1]
        assert all(wrong[int(each.predicted)] == each.samples for each in found.result_after.confused)
        recall = 100 * np.mean(predicted[labels == c] == c)
        accuracy = 100 * np.mean((predicted == c) == (labels == c))
        row = re.search(
            rf'<tr><th scope="row">{c}</th>(.*?)</tr>', section_of(page, "reliability")[5:].split("sortable")[1]
        )
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[1])
        assert cells[0] == f"{np.sum(labels == c):,}"
        assert float(cells[1]) == pytest.approx(accuracy, abs=0.051)
        assert float(cells[3]) == pytest.approx(recall, abs=0.051)


def test_every_bar_has_its_interval_and_few_samples_are_pale(page: str, report: Report) -> None:
    top, drawn = section_of(page, "reliability").split("Class by class")
    filled = [n for bins in (report.reliability.before, report.reliability.after) for n in bins.count if n]
    assert top.count('<line class="whisker"') == 3 * len(filled)
    assert top.count('<g class="mark weak">') == sum(n < 10 for n in filled)
    assert drawn.count('"consistent-border"') == drawn.count('<g class="mark')


def test_the_page_says_when_how_long_and_on_which_data(page: str, report: Report) -> None:
    made = report.details.made
    assert datetime.fromisoformat(made.date).utcoffset() == timedelta(0)
    assert 0 < made.seconds < 600
    # as the file says itself
    entries = {entry.key: entry.value for entry in onnx.load(report.output).metadata_props}
    digest = entries["tna_onnx.calibration_sha256"]
    assert made.calibration_sha256 == digest != made.held_out_sha256
    run = section_of(page, "run")
    assert all(text in run for text in (digest, made.held_out_sha256, "Command to repeat it", " UTC, took "))


def code_of(page: str) -> str:
    [found] = re.findall(r"<pre[^>]*><code>(.*?)</code>", section_of(page, "use"), re.DOTALL)
    return html.unescape(found)


def test_three_lines_run_the_file(page: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    text = code_of(page)
    assert len(text.splitlines()) == 3
    samples = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    monkeypatch.chdir(Path(report.output).parent)
    names = {"samples": samples}
    exec(text.replace("...", "samples"), names)
    np.testing.assert_array_equal(names["scores"], outputs_of(report.output, samples)["logits"])
    assert "their softmax along axis 1" in text


def test_names_of_a_model_are_literals_in_the_lines(report: Report) -> None:
    evil = 'x"];\n</script>'
    details = report.details
    made = replace(details.made, inputs=(replace(details.made.inputs[0], name=evil),), output=evil)
    page = page_of(replace(report, details=replace(details, made=made)))
    check_page(page)
    text = code_of(page)
    assert text.count(json.dumps(evil)) == 2
    compile(text, "use.py", "exec")


def test_the_diagrams_of_the_predicted_class_have_the_band_of_calibrated_models(page: str, report: Report) -> None:
    top, classes = section_of(page, "reliability").split("Class by class")
    assert top.count('<polygon class="band"') == top.count('<polyline class="line fit"') == 2
    assert "<polygon" not in classes
    assert "consistent with calibration (95 %)" in top
    fit = report.bin_free_before.corp.curve
    drawn = top.split('<polyline class="line fit" points="')[1].split('"')[0].split()
    assert len(drawn) == len(fit.confidence)
    left, right, top_edge, bottom = 58, 368, 10, 236
    x, y = (float(value) for value in drawn[-1].split(","))
    assert x == pytest.approx(left + fit.confidence[-1] * (right - left), abs=0.01)
    assert y == pytest.approx(bottom - fit.accuracy[-1] * (bottom - top_edge), abs=0.01)


def test_bad_candidates_do_not_flatten_the_curve(report: Report) -> None:
    details = report.details
    worst = replace(details.steps[0].calibration, objective=0.9)  # as accurate as the original
    steps = (*details.steps, replace(details.steps[-1], angle=85.0, calibration=worst, held_out=worst))
    page = page_of(replace(report, details=replace(details, steps=steps)))
    chart = page[page.index("<figcaption>ECE against angle") :]
    ticks = re.findall(r'text-anchor="end">([0-9.]+)</text>', chart[: chart.index("</figure>")])
    assert max(map(float, ticks)) <= 2 * 1.15 * 100 * details.steps[0].calibration.objective
    assert '<th scope="row">85</th>' in page


def test_every_candidate_has_a_marker_and_no_two_entries_look_alike(report: Report) -> None:
    details = report.details
    steps = tuple(replace(details.steps[-1], angle=2.0 * k, members=2**k) for k in range(1, 9))
    searched = replace(details, steps=(details.steps[0], *steps), chosen=8)
    panel = predictions.search(report, searched)
    entries = [key.drawing for key in panel.keys]
    assert len(set(entries)) == len(entries)
    assert sum("dot" in part for part in str(panel.figures[0].drawing).split("<")) == 2 * len(searched.steps)


def test_a_refusal_says_so_and_why(report: Report) -> None:
    why = ("--max-ece 1 missed: <ECE> is 2 %", "--max-nll 1 missed: NLL is 2 nats")
    page = page_of(replace(report, missed=why, output=""))
    check_page(page)
    assert "because 2 gates were missed" in page
    assert all(f"<li>{escape(line)}</li>" in page for line in why)
    assert "refused, not written: " in page
    assert "What changed in the file" not in page
    assert "Refused" not in page_of(report)
    dry = page_of(replace(report, dry_run=True, output=""))
    assert "Dry run: no file was written." in dry
    assert "dry run, not written: " in dry


def style() -> str:
    folder = files("tna_onnx.render.html")
    return "".join(folder.joinpath(name).read_text("utf-8") for name in ("page.css", "drawing.css"))


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_colours_have_contrast(scheme: str) -> None:
    block = style().split(":root {")[1 + ["light", "dark", "print"].index(scheme)].split("}")[0]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
    for name in ("ink", "soft", "before", "after", "third", "good", "bad"):
        for ground in ("paper", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, name  # WCAG 2 AA for text
    for name in ("bar", "gap", "slack"):
        assert contrast(colours[name], colours["paper"]) >= 3, name  # and for graphics


def contrast(one: str, other: str) -> float:
    """Contrast of two colours #rrggbb by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_choice_is_a_dot_plot_and_what_was_not_tilted_has_no_search(small: Small) -> None:
    words = {"objective": "nll", "device": "cpu", "details": True, "dry_run": True}
    report = with_options(tna_onnx.calibrate, small.model, small.calib, eval=small.test, **words)  # type: ignore[arg-type]
    page = page_of(replace(report, angle=0.0))
    check_page(page)
    rows = section_of(page, "choice").split("<tbody>")[1].split("</tr>")[:-1]
    assert sum("point chosen" in row for row in rows) == 1
    assert sum("point input" in row for row in rows) == (report.method != "none")
    losses = [float(re.findall(r"<td>([0-9.]+)[ <]", row)[0]) for row in rows]
    assert losses == sorted(losses)
    assert losses[0] == pytest.approx(min(each.metrics.nll for each in report.methods), abs=5e-5)
    assert 'id="search"' not in page
    # logits times 1e30: every method has one huge loss
    alike = [replace(each, error=0.0, metrics=replace(each.metrics, nll=1e27)) for each in report.methods]
    check_page(page_of(replace(report, methods=tuple(alike))))


def test_a_report_without_details_has_fewer_sections(report: Report) -> None:
    page = page_of(replace(report, details=None))
    assert re.findall(r'<section id="(\w+)"', page) == ["result", "reliability", "run"]
    assert "Class by class" not in page


# The command


def test_the_page_says_what_came_from_files_and_the_environment(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tna.toml").write_text('[calibrate]\nmax-nll = 50\nsearch = "complete"\n')
    monkeypatch.setenv("TNA_ONNX_SEED", "4")
    monkeypatch.setenv("TNA_ONNX_MAP", "ets")
    options = ["--calib", small.calib, "-o", tmp_path / "o.onnx", "--report", tmp_path / "r.html", "--device", "cpu"]
    flags = ["--config", tmp_path / "tna.toml", "--search", "none", "--map", "ts", "-q"]
    ok("calibrate", small.model, *options, *flags)
    page = (tmp_path / "r.html").read_text("utf-8")
    check_page(page)
    repeated = page[page.index("<dt>Command to repeat it</dt>") :].split("</dd>")[0]
    assert "--max-nll 50" in repeated
    assert "--seed 4" in repeated
    assert "complete" not in repeated
    assert "--map ets" not in repeated


def test_images_have_names_and_their_recipe(demo: Demo, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    arrays = np.load(demo.test)
    pixels = np.round(arrays["image"][:200, 0] * 255).astype(np.uint8)
    for k, label in enumerate(arrays["labels"][:200]):
        (tmp_path / "images" / str(label)).mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels[k]).save(tmp_path / "images" / str(label) / f"<{k}>.png")
    held_out = tna_onnx.Data(tmp_path / "images", preprocessing=tna_onnx.Recipe(scale=1 / 255))
    report = tna_onnx.calibrate(
        demo.model, demo.calib, eval=held_out, output=tmp_path / "o.onnx", details=True, **PLAIN
    )
    details = report.details
    assert [k.name for k in details.classes] == list(map(str, range(10)))
    sample = details.underconfident[0]
    assert sample.file.startswith(f"{sample.label}/<")
    page = page_of(report)
    check_page(page)
    assert "Preprocessing, held-out" in page
    assert "interpolation bilinear" in page
