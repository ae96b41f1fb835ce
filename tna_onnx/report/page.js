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

// The slider chooses which of the diagrams is seen.
const slider = document.querySelector(".slider input");
if (slider) {
  const figures = [...document.querySelectorAll(".steps figure")];
  const show = () => {
    figures.forEach((figure, k) => figure.classList.toggle("active", k === Number(slider.value)));
    const text = figures[slider.value].dataset.text;
    slider.setAttribute("aria-valuetext", text);
    document.querySelector(".slider output").textContent = text;
  };
  slider.addEventListener("input", show);
  show();
}
