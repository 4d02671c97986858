// What charts of every page share: the axis, smoothing, colours, layout, and drawing when they come near the window.

const choices = { axis: "global_step", smoothing: 0.6, log: false, longest: 0 };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function lineColour(index) {
  return colour(`--line-${(index % 6) + 1}`);
}

function plain(text) {
  // Plotly reads a few tags in its texts; names come from files, so they are shown as they are.
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function timeUnit() {
  const total = choices.longest;
  return total > 7200 ? { name: "hours", seconds: 3600 } : total > 120 ? { name: "minutes", seconds: 60 } : { name: "seconds", seconds: 1 };
}

function axisTitle() {
  return choices.axis === "seconds" ? timeUnit().name : choices.axis === "tokens" ? "tokens" : "step";
}

function places(steps) {
  const values = steps[choices.axis];
  if (choices.axis !== "seconds") return values;
  const unit = timeUnit().seconds;
  return values.map((value) => value / unit);
}

function placeOf(steps, globalStep) {
  // Where the end of a step lies on the axis; 0 is before the first.
  if (choices.axis === "global_step") return globalStep;
  let place = 0;
  const xs = places(steps);
  for (let at = 0; at < steps.global_step.length && steps.global_step[at] <= globalStep; at++) place = xs[at];
  return place;
}

function smoothed(values, stages, weight) {
  // Exponential mean without the pull of its start; it starts afresh with each stage.
  let sum = 0, total = 0;
  return values.map((value, at) => {
    if (at && stages[at] !== stages[at - 1]) sum = total = 0;
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function errorBars(around, y, ink) {
  // Bars to [low, high]; none where a value has no such pair.
  if (!around.some(Boolean)) return {};
  return {
    error_y: {
      type: "data", symmetric: false, thickness: 1.5, width: 4, color: ink,
      array: around.map((pair, at) => (pair ? pair[1] - y[at] : 0)), arrayminus: around.map((pair, at) => (pair ? y[at] - pair[0] : 0)),
    },
  };
}

function layout(extra) {
  const axis = { gridcolor: colour("--edge"), zerolinecolor: colour("--edge"), automargin: true };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--ink"), size: 12 },
    margin: { l: 8, r: 8, t: 22, b: 8 }, hovermode: "x unified", legend: { orientation: "h", y: -0.22, font: { size: 11 } },
    hoverlabel: { bgcolor: colour("--surface"), font: { color: colour("--ink") } },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

function valueAxis(unit) {
  const formats = { share: { tickformat: ".0%" }, bytes: { tickformat: ".2~s", ticksuffix: "B" } };
  const floor = unit === "share" && !choices.log ? { minallowed: 0 } : {};
  const title = unit === "share" || unit === "1" ? "" : plain(unit);
  return { title: { text: title, standoff: 4 }, type: choices.log ? "log" : "linear", exponentformat: "e", ...formats[unit], ...floor };
}

async function draw(plot, picture, onStep) {
  const made = picture(plot.dataset.chart);
  plot.setAttribute("aria-label", made.label);
  const first = !plot.dataset.drawn;
  plot.dataset.drawn = "yes";
  await Plotly.react(plot, made.traces, made.layout, { responsive: true, displaylogo: false, displayModeBar: false });
  if (first && onStep) plot.on("plotly_click", (event) => {
    const point = event.points[0];
    onStep(point.customdata ?? point.x);
  });
}

function startCharts(picture, longest, onStep) {
  // `picture` makes a chart's { traces, layout, label } from its name; `longest` is the end of the time axis in seconds.
  choices.longest = longest;
  const plots = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting && !target.dataset.drawn) draw(target, picture, onStep);
  }, { rootMargin: "400px" });
  plots.forEach((plot) => watcher.observe(plot));
  const again = () => plots.filter((plot) => plot.dataset.drawn).forEach((plot) => draw(plot, picture, onStep));
  byId("chart-controls")?.addEventListener("input", () => {
    Object.assign(choices, { axis: byId("axis").value, smoothing: Number(byId("smoothing").value), log: byId("log").checked });
    again();
  });
  byId("chart-controls")?.addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
}
