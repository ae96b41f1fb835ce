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

// On a small screen, what is not the result waits until it is asked for.
const folds = [...document.querySelectorAll("details.fold")];
if (matchMedia("(max-width: 34rem)").matches) for (const fold of folds) fold.open = false;
const unfold = () => { const fold = document.querySelector(`${location.hash || "#none"} details.fold`); if (fold) fold.open = true; };
addEventListener("hashchange", unfold);
unfold();

// Tables of classes are sorted by a click on a head; a second click turns the order round.
const leadingNumber = (text) => parseFloat(text.replaceAll(",", "").replace("−", "-"));
const compare = (a, b) => {
  const [x, y] = [leadingNumber(a), leadingNumber(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b);
  return x - y || a.localeCompare(b);
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
    const cell = (it) => `"${it.textContent.trim().replaceAll("−", "-").replaceAll('"', '""')}"`;
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
