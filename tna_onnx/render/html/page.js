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
for (const slider of document.querySelectorAll(".slider input")) {
  const part = slider.closest("section");
  const figures = [...part.querySelectorAll(".steps figure")];
  const cursors = part.querySelectorAll(".cursor");
  const show = () => {
    const { text, x } = figures[slider.value].dataset;
    figures.forEach((figure, k) => figure.classList.toggle("active", k === Number(slider.value)));
    for (const line of cursors) for (const end of ["x1", "x2"]) line.setAttribute(end, x);
    slider.setAttribute("aria-valuetext", text);
    part.querySelector(".slider output").textContent = text;
  };
  slider.addEventListener("input", show);
  show();
}

// The diagrams of any class, drawn as svg.py draws them, from the bins that the page holds as numbers.
for (const picker of document.querySelectorAll(".picker")) {
  const { bins, z, few, classes } = JSON.parse(picker.querySelector("script").textContent);
  const select = picker.querySelector("select");
  const element = (name, attributes) => {
    const made = document.createElementNS(picker.querySelector("svg").namespaceURI, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };
  // As short_count of reliability.py does it.
  const short = (n) => {
    const [factor, suffix] = [[1, ""], [1e3, "k"], [1e6, "M"]].find(([size]) => Math.round(n / size) < 1000);
    const text = (n / factor).toFixed(1);
    return (text.length > 3 || text.endsWith(".0") ? (n / factor).toFixed(0) : text) + suffix;
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
    const largest = Math.max(...rows.map((row) => row.n));
    const bar = (j, look, low, high, from, to) => element("rect", {
      class: look, x: left + j * step + 0.6, width: step - 1.2, y: from - high * (from - to), height: (high - low) * (from - to),
    });
    const between = (middle, reach) => [Math.max(0, middle - reach), Math.min(1, middle + reach)];
    const line = (x1, y1, x2, y2) => element("line", { class: "whisker", x1, y1, x2, y2 });
    svg.querySelectorAll(".mark").forEach((mark) => mark.remove());
    for (const { j, n, p, f } of rows) {
      const mark = element("g", { class: n < few ? "mark weak" : "mark" });
      // Both sides of the score test, as in numerics/proportions.py.
      const w = z * z / n;
      const [low, high] = between((f + w / 2) / (1 + w), Math.sqrt(w * f * (1 - f) + w * w / 4) / (1 + w));
      const [least, most] = between(p, z * Math.sqrt(p * (1 - p) / n));
      const x = left + (j + 0.5) * step;
      const [lowAt, highAt] = [low, high].map((share) => bottom - share * (bottom - top));
      mark.dataset.tip = `probability ${(j / bins).toFixed(2)} to ${((j + 1) / bins).toFixed(2)}: ` +
        `${n.toLocaleString("en")} samples (${(100 * n / total).toFixed(1)}%), ` +
        `mean probability ${p.toFixed(3)}, frequency ${f.toFixed(3)} (${low.toFixed(3)} to ${high.toFixed(3)})`;
      mark.append(
        bar(j, "hit-area", 0, 1, bottom, top),
        bar(j, "consistent", least, most, bottom, top),
        bar(j, "accuracy", 0, f, bottom, top),
        bar(j, p > f ? "over" : "under", Math.min(p, f), Math.max(p, f), bottom, top),
        bar(j, "count", 0, n / largest, stripBottom, stripTop),
        bar(j, "consistent-border", least, most, bottom, top),
        line(x, lowAt, x, highAt),
        ...[lowAt, highAt].map((y) => line(x - 2.5, y, x + 2.5, y)),
      );
      if (bins <= 20) {
        const count = element("text", { class: "n", x, y: stripTop - 5, "text-anchor": "middle" });
        count.textContent = short(n);
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

// Tables of classes are sorted by a click on a head; a second click turns the order round.
const plainNumber = (text) => (/^[\d.,]+$/.test(text) ? Number(text.replaceAll(",", "")) : NaN);
const compare = (a, b) => {
  const [x, y] = [plainNumber(a), plainNumber(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b);
  return x - y;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const text = (row) => row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(text(a), text(b)));
      table.tBodies[0].append(...(falling ? rows.reverse() : rows));
    });
  });
}

// Any table as CSV.
for (const table of document.querySelectorAll(".scroll table")) {
  const button = document.createElement("button");
  button.className = "csv";
  button.textContent = "CSV";
  button.setAttribute("aria-label", `Download as CSV: ${table.caption.textContent}`);
  const name = table.caption.textContent;
  button.addEventListener("click", () => {
    const cell = (it) => `"${it.textContent.trim().replaceAll('"', '""')}"`;
    const text = [...table.rows].map((row) => [...row.cells].map(cell).join(",")).join("\r\n");
    save(new Blob(["\ufeff" + text + "\r\n"], { type: "text/csv" }), name.replace(/\W+/g, "-") + ".csv");
  });
  table.caption.append(" ", button);
}
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The numbers are stored gzipped; where the browser can, they are saved as they are read.
for (const numbers of "DecompressionStream" in window ? document.querySelectorAll("a[download]") : []) {
  numbers.addEventListener("click", async (event) => {
    event.preventDefault();
    const bytes = Uint8Array.from(atob(numbers.href.split(",")[1]), (letter) => letter.charCodeAt(0));
    const json = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
    save(json, numbers.download.replace(/\.gz$/, ""));
  });
}

// Pictures of samples are enlarged.
const pictures = document.querySelectorAll(".samples img");
if (pictures.length) {
  const dialog = document.createElement("dialog");
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  for (const picture of pictures) {
    const button = document.createElement("button");
    button.className = "enlarge";
    button.setAttribute("aria-label", `Enlarge: ${picture.alt}`);
    picture.replaceWith(button);
    button.append(picture);
    button.addEventListener("click", () => {
      const large = picture.cloneNode();
      const text = document.createElement("p");
      text.textContent = button.parentElement.innerText;
      dialog.replaceChildren(large, text, close);
      dialog.setAttribute("aria-label", picture.alt);
      dialog.showModal();
    });
  }
}
