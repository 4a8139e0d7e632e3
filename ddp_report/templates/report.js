// The words at a pointer. The page says everything without it.
"use strict";
(() => {
  const tooltips = JSON.parse(document.getElementById("tooltips").textContent);
  const box = document.getElementById("pointer");
  if (!tooltips.times) return;
  const frames = [...document.querySelectorAll("[data-plot]")].map((frame) => {
    const plot = frame.querySelector(".plot");
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    cursor.hidden = true;
    plot.append(cursor);
    return { plot, cursor, curves: Object.entries(tooltips.plots[frame.dataset.plot] || {}) };
  });
  const hide = () => {
    box.hidden = true;
    for (const { cursor } of frames) cursor.hidden = true;
  };
  const show = (curves, event, plot) => {
    const area = plot.getBoundingClientRect();
    const share = Math.min(0.999999, Math.max(0, (event.clientX - area.left) / area.width));
    const part = Math.floor(share * tooltips.times.length);
    const lines = curves.filter(([, values]) => values[part]).map(([name, values]) => `${name}: ${values[part]}`);
    box.textContent = [tooltips.times[part], ...lines].join("\n");
    box.hidden = false;
    const left = event.clientX + 14 + box.offsetWidth > innerWidth ? event.clientX - 14 - box.offsetWidth : event.clientX + 14;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.min(innerHeight - box.offsetHeight - 4, event.clientY + 14)}px`;
    for (const { cursor } of frames) {
      cursor.hidden = false;
      cursor.style.left = `${100 * (part + 0.5) / tooltips.times.length}%`;
    }
  };
  for (const { plot, curves } of frames) {
    plot.addEventListener("pointermove", (event) => show(curves, event, plot));
    plot.addEventListener("pointerleave", hide);
  }
  addEventListener("scroll", hide, { passive: true });
})();
