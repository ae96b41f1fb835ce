"""The Content-Security-Policy of a page lets its own style and script in, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re

import tna_onnx
from tests.conftest import Small
from tna_onnx.render.html.pages import to_html


def test_a_page_allows_its_own_style_and_script_alone(small: Small) -> None:
    words = {"map": "ts", "search": "none", "dry_run": True, "details": True, "device": "cpu"}
    page = to_html(tna_onnx.calibrate(small.model, small.calib, **words))  # type: ignore[arg-type]
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy is not None
    # before anything that it is about
    assert policy.start() < page.index("<style>")
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#39;", "'").split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for element in ("style", "script"):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{element}-src"] == f"'sha256-{digest}'"
    # what the policy would stop is not there: styles and handlers in attributes, sources elsewhere
    assert not re.search(r'<[^>]*\s(style|on\w+)="', page)
    assert not re.search(r'(src|href)="(?!#|data:)', page.replace('href="data:,"', ""))
