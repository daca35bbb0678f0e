// Draws the stored figures of a page with the colours of the reader's theme. Loads nothing but the files beside it.
"use strict";
(() => {
  const config = {
    responsive: true,
    displaylogo: false,
    showSendToCloud: false,
    plotlyServerURL: "",
    topojsonURL: "about:blank",
    modeBarButtonsToRemove: ["sendDataToCloud", "lasso2d", "select2d", "autoScale2d"],
  };
  if (!matchMedia("(hover: hover)").matches) config.displayModeBar = false; // on a phone it would cover the figure
  // The lab's palette, brightened for a dark page; other colours stay as they are.
  const bright = {"#0072B2": "#4aa8ea", "#D55E00": "#ff8a3d", "#009E73": "#2cc79a", "#CC79A7": "#e39cc4", "#767c86": "#9ba3ae"};
  const figures = new Map();
  window.labkitFigure = (name, figure) => figures.set(name, figure);

  const colours = (printing) => {
    const style = getComputedStyle(document.documentElement);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches && !printing;
    const pick = (name, light) => (printing ? light : style.getPropertyValue(name).trim() || light);
    return {ink: pick("--ink", "#1d1f23"), muted: pick("--muted", "#59616b"), line: pick("--line", "#dddddd"), dark};
  };

  // The figure with its template in the page's colours; what a figure sets outside its template stays as it was set.
  const themed = (figure, printing) => {
    const {ink, muted, line, dark} = colours(printing);
    let text = JSON.stringify({data: figure.data, layout: figure.layout || {}});
    if (dark) for (const [from, to] of Object.entries(bright)) text = text.replaceAll(`"${from}"`, `"${to}"`);
    const {data, layout} = JSON.parse(text);
    const template = (layout.template = layout.template || {});
    const base = (template.layout = template.layout || {});
    Object.assign(base, {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)"});
    base.font = Object.assign({}, base.font, {color: ink, family: getComputedStyle(document.body).fontFamily});
    for (const axis of ["xaxis", "yaxis"]) {
      base[axis] = Object.assign({}, base[axis], {gridcolor: line, linecolor: muted, zerolinecolor: muted, tickcolor: muted});
    }
    base.hoverlabel = Object.assign({}, base.hoverlabel, {bgcolor: dark ? "#23272e" : "#ffffff", bordercolor: muted});
    base.hoverlabel.font = Object.assign({}, base.hoverlabel.font, {color: ink});
    base.modebar = {bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink};
    if (matchMedia("(max-width: 600px)").matches) {
      base.font.size = 12;
      base.margin = Object.assign({}, base.margin, {l: 48, r: 12});
      if (layout.margin) Object.assign(layout.margin, {l: 48, r: 12});
    }
    return {data, layout, frames: figure.frames, config};
  };

  const failed = (area, error) => {
    const note = document.createElement("p");
    note.className = "problem";
    note.textContent = "This figure could not be drawn: " + (error && error.message ? error.message : error);
    area.replaceChildren(note);
    area.style.height = "auto";
  };

  const draw = (area, printing = false) => {
    const figure = figures.get(area.dataset.plot);
    if (!figure) return failed(area, "its data are missing");
    try {
      const done = Plotly.react(area, themed(figure, printing));
      if (done && done.catch) done.catch((error) => failed(area, error));
    } catch (error) {
      failed(area, error);
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const script of document.querySelectorAll("script[data-figure]")) {
      figures.set(script.dataset.figure, JSON.parse(script.textContent));
    }
    const areas = [...document.querySelectorAll("[data-plot]")];
    if (typeof Plotly === "undefined") return areas.forEach((area) => failed(area, "plotly.min.js is missing"));
    const drawNext = (index) => {
      if (index === areas.length) return;
      areas[index].replaceChildren();
      draw(areas[index]);
      setTimeout(drawNext, 0, index + 1); // one at a time, so the page can be read and scrolled meanwhile
    };
    drawNext(0);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => areas.forEach((area) => draw(area)));
    const details = new Set();
    addEventListener("beforeprint", () => {
      areas.forEach((area) => draw(area, true));
      for (const fold of document.querySelectorAll("details:not([open])")) {
        details.add(fold);
        fold.open = true;
      }
    });
    addEventListener("afterprint", () => {
      areas.forEach((area) => draw(area));
      details.forEach((fold) => (fold.open = false));
      details.clear();
    });
  });
})();
