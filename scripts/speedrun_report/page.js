// Draws the charts that lie in the page as JSON, in the colours of the reader's scheme, and sorts its tables.
"use strict";

const figures = JSON.parse(document.getElementById("figures").textContent);
const phone = window.matchMedia("(max-width: 600px)");

function colorOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Keys of a layout, dotted, so that the same serve the first drawing and a change of scheme.
function scheme() {
  const update = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font.color": colorOf("--text"),
    "font.family": getComputedStyle(document.body).fontFamily,
    "font.size": phone.matches ? 12 : 13,
    "margin.t": phone.matches ? 10 : 34,  // above the chart are its buttons, which a phone does not have
    "hoverlabel.bgcolor": colorOf("--card"),
    "hoverlabel.bordercolor": colorOf("--muted"),
    "hoverlabel.font.color": colorOf("--text"),
    "hoverlabel.font.family": getComputedStyle(document.body).fontFamily,
    "modebar.bgcolor": "rgba(0,0,0,0)",
    "modebar.color": colorOf("--muted"),
    "modebar.activecolor": colorOf("--accent"),
  };
  for (const axis of ["xaxis", "yaxis"]) {
    update[axis + ".gridcolor"] = colorOf("--grid");
    update[axis + ".linecolor"] = colorOf("--line");
    update[axis + ".tickcolor"] = colorOf("--line");
  }
  return update;
}

function set(object, dotted, value) {
  const keys = dotted.split(".");
  const last = keys.pop();
  for (const key of keys) object = object[key] = object[key] || {};
  object[last] = value;
}

const charts = [];
for (const [id, figure] of Object.entries(figures)) {
  for (const [key, value] of Object.entries(scheme())) set(figure.layout, key, value);
  const chart = document.getElementById(id);
  Plotly.newPlot(chart, figure.data, figure.layout, {
    // Plotly's button that uploads a chart to its makers has no place here.
    responsive: true, displaylogo: false, showSendToCloud: false, displayModeBar: phone.matches ? false : "hover",
    modeBarButtonsToRemove: ["lasso2d", "select2d"],
    toImageButtonOptions: { filename: "speedrun_" + id, scale: 2 },
  });
  charts.push(chart);
}
const recolor = () => charts.forEach((chart) => Plotly.relayout(chart, scheme()));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
phone.addEventListener("change", recolor);

// Which configs and which kind of loss are shown: the same in all charts.
const off = document.querySelectorAll("button[data-group][aria-pressed=false]");
const hidden = new Set([...off].map((button) => Number(button.dataset.group)));
let kind = "both";
function showChosen() {
  for (const chart of charts) {
    const visible = chart.data.map((trace) => !trace.meta ||
      (!hidden.has(trace.meta.group) && (!trace.meta.kind || kind === "both" || trace.meta.kind === kind)));
    Plotly.restyle(chart, { visible });
  }
}
if (hidden.size > 0) showChosen();
for (const button of document.querySelectorAll("button[data-group]")) {
  button.addEventListener("click", () => {
    const group = Number(button.dataset.group);
    if (!hidden.delete(group)) hidden.add(group);
    button.setAttribute("aria-pressed", String(!hidden.has(group)));
    showChosen();
  });
}
for (const button of document.querySelectorAll("button[data-kind]")) {
  button.addEventListener("click", () => {
    kind = button.dataset.kind;
    for (const other of document.querySelectorAll("button[data-kind]"))
      other.setAttribute("aria-pressed", String(other === button));
    showChosen();
  });
}

// Numbers by value, texts by the reader's alphabet; cells without a key stay last either way.
function compareCells(a, b, sign) {
  const keyA = a.dataset.key, keyB = b.dataset.key;
  if (keyA === undefined || keyB === undefined) return (keyA === undefined) - (keyB === undefined);
  const numberA = Number(keyA), numberB = Number(keyB);
  if (Number.isNaN(numberA) || Number.isNaN(numberB))
    return sign * keyA.localeCompare(keyB, undefined, { numeric: true });
  return sign * (numberA - numberB);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? direction : "none"));
    const sign = direction === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => compareCells(a.cells[column], b.cells[column], sign));
    body.append(...rows);
  }));
}
document.documentElement.dataset.ready = "true";
