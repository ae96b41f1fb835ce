"use strict";
document.documentElement.classList.add("js");

// Drawings keep their name for screen readers, but do not show it over everything that is hovered.
for (const svg of document.querySelectorAll("svg.chart")) {
  const [title, desc] = [svg.querySelector(":scope > title"), svg.querySelector(":scope > desc")];
  svg.setAttribute("aria-label", title.textContent + ". " + desc.textContent);
  title.remove();
}

// Counts of a mark, on hover and on touch.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
document.body.append(tip);
for (const mark of document.querySelectorAll(".mark")) {
  const title = mark.querySelector("title");
  mark.dataset.tip = title.textContent;
  title.remove();
}
function point(event) {
  const mark = event.target instanceof Element ? event.target.closest(".mark") : null;
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4)) + "px";
  tip.style.top = Math.max(4, event.clientY - box.height - 12) + "px";
}
document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// The slider chooses which of the diagrams is seen, and the charts over the angle show where it stands.
const slider = document.querySelector(".slider input");
if (slider) {
  const figures = [...document.querySelectorAll(".steps figure")];
  const cursors = document.querySelectorAll(".cursor");
  const show = () => {
    const { text, x } = figures[slider.value].dataset;
    figures.forEach((figure, k) => figure.classList.toggle("active", k === Number(slider.value)));
    for (const line of cursors) for (const end of ["x1", "x2"]) line.setAttribute(end, x);
    slider.setAttribute("aria-valuetext", text);
    document.querySelector(".slider output").textContent = text;
  };
  slider.addEventListener("input", show);
  show();
}

// The diagrams of any class, drawn as svg.py draws them, from the bins that the page holds as numbers.
const picker = document.querySelector(".picker");
if (picker) {
  const { bins, classes } = JSON.parse(picker.querySelector("script").textContent);
  const select = picker.querySelector("select");
  const element = (name, attributes) => {
    const made = document.createElementNS(picker.querySelector("svg").namespaceURI, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };
  const draw = (figure, word, flat, name) => {
    const svg = figure.querySelector("svg");
    const [left, right, top, bottom, stripTop, stripBottom] = svg.dataset.frame.split(" ").map(Number);
    const step = (right - left) / bins;
    const rows = [];
    for (let k = 0; k < flat.length; k += 4) {
      rows.push({ j: flat[k], n: flat[k + 1], p: flat[k + 2] / 1e4, f: flat[k + 3] / 1e4 });
    }
    const total = rows.reduce((sum, row) => sum + row.n, 0);
    const most = Math.max(...rows.map((row) => row.n));
    const bar = (j, look, low, high, from, to) => element("rect", {
      class: look, x: left + j * step + 0.6, width: step - 1.2, y: from - high * (from - to), height: (high - low) * (from - to),
    });
    svg.querySelectorAll(".mark").forEach((mark) => mark.remove());
    for (const { j, n, p, f } of rows) {
      const mark = element("g", { class: "mark" });
      mark.dataset.tip = `probability ${(j / bins).toFixed(2)} to ${((j + 1) / bins).toFixed(2)}: ` +
        `${n.toLocaleString("en")} samples (${(100 * n / total).toFixed(1)}%), ` +
        `mean probability ${p.toFixed(3)}, frequency ${f.toFixed(3)}`;
      mark.append(
        bar(j, "hit-area", 0, 1, bottom, top),
        bar(j, "accuracy", 0, f, bottom, top),
        bar(j, p > f ? "over" : "under", Math.min(p, f), Math.max(p, f), bottom, top),
        bar(j, "count", 0, n / most, stripBottom, stripTop),
      );
      if (bins <= 25) {
        const place = `translate(${left + (j + 0.5) * step + 3.5} ${stripBottom - 3}) rotate(-90)`;
        const count = element("text", { class: "n", transform: place });
        count.textContent = n.toLocaleString("en");
        mark.append(count);
      }
      svg.querySelector(".diagonal").before(mark);
    }
    const gap = rows.reduce((sum, row) => sum + row.n * Math.abs(row.p - row.f), 0) / total;
    const caption = `Class ${name} ${word}: gap ${(100 * gap).toFixed(2)} %`;
    figure.querySelector("figcaption").textContent = caption;
    const said = rows.map(({ j, n, f }) => `${(j / bins).toFixed(2)} to ${((j + 1) / bins).toFixed(2)}: ${n} samples, frequency ${f.toFixed(2)}`);
    svg.setAttribute("aria-label", `${caption}. ${said.join("; ")}.`);
  };
  const [before, after] = picker.querySelectorAll("figure");
  for (const caption of picker.querySelectorAll("figcaption")) caption.setAttribute("aria-live", "polite");
  select.addEventListener("change", () => {
    const name = select.selectedOptions[0].dataset.name;
    draw(before, "before", classes[select.value][0], name);
    draw(after, "after", classes[select.value][1], name);
  });
}
