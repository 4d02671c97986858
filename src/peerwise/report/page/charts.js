// The curves, drawn with Plotly when they come near the window and again when a control or the theme changes.

const choices = { axis: "global_step", smoothing: 0.6, log: false };

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

function timeUnit(tree) {
  const total = tree.curves.steps.seconds.at(-1) ?? 0;
  return total > 7200 ? { name: "hours", seconds: 3600 } : total > 120 ? { name: "minutes", seconds: 60 } : { name: "seconds", seconds: 1 };
}

function places(tree) {
  const values = tree.curves.steps[choices.axis];
  if (choices.axis !== "seconds") return values;
  const unit = timeUnit(tree).seconds;
  return values.map((value) => value / unit);
}

function placeOf(tree, globalStep) {
  // Where the end of a step lies on the axis; 0 is before the first.
  if (choices.axis === "global_step") return globalStep;
  const steps = tree.curves.steps.global_step;
  let place = 0;
  const xs = places(tree);
  for (let at = 0; at < steps.length && steps[at] <= globalStep; at++) place = xs[at];
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

function metricTraces(tree, chart) {
  const { series, steps } = tree.curves;
  const x = places(tree);
  return chart.keys.flatMap((key, index) => {
    const values = series[key];
    const present = values.filter((value) => value !== null).length;
    const whole = values.slice(values.findIndex((value) => value !== null), values.findLastIndex((value) => value !== null));
    const base = { x, customdata: steps.global_step, name: plain(key), legendgroup: key, type: "scatter" };
    // A value between two gaps has no line to it, so where there are gaps each value is also a dot.
    const mode = whole.length && !whole.includes(null) ? "lines" : "lines+markers";
    const drawn = { ...base, mode, y: smoothed(values, steps.stage, choices.smoothing), line: { color: lineColour(index), width: 2 }, marker: { size: 4 }, text: values.map(short), hovertemplate: "%{text}" };
    if (!choices.smoothing || present < 3) return [drawn];
    return [{ ...base, mode, y: values, line: { color: lineColour(index), width: 1 }, marker: { size: 3 }, opacity: 0.25, showlegend: false, hoverinfo: "skip" }, drawn];
  });
}

function heldOutTrace(tree, records, name, value, bounds, index) {
  const kept = records.filter((record) => value(record) !== null && value(record) !== undefined);
  const y = kept.map(value);
  const trace = {
    x: kept.map((record) => placeOf(tree, record.global_step)), y, customdata: kept.map((record) => record.global_step),
    name: plain(name), type: "scatter", mode: "lines+markers", line: { color: lineColour(index), width: 1, dash: "dot" },
    marker: { symbol: "diamond", size: 9, color: lineColour(index) }, text: kept.map((record) => plain(record.when)),
    hovertemplate: "%{y:.4~g} %{text}",
  };
  const around = kept.map(bounds);
  if (around.some(Boolean)) {
    trace.error_y = {
      type: "data", symmetric: false, thickness: 1.5, width: 4, color: lineColour(index),
      array: around.map((pair, at) => (pair ? pair[1] - y[at] : 0)), arrayminus: around.map((pair, at) => (pair ? y[at] - pair[0] : 0)),
    };
  }
  return trace;
}

function heldOutTraces(tree, chart) {
  const tasks = [...new Set(tree.evaluations.map((record) => record.task))];
  return tasks.flatMap((task, taskIndex) => {
    const records = tree.evaluations.filter((record) => record.task === task);
    const first = chart.keys.length + taskIndex;
    if (chart.held_out !== "pass_at_k") {
      const bounds = (record) => (chart.held_out === "accuracy" ? record.interval : null);
      return [heldOutTrace(tree, records, `held out: ${task}`, (record) => record[chart.held_out], bounds, first)];
    }
    return [["pass_at_k", "pass@"], ["maj_at_k", "maj@"]].flatMap(([field, label], kind) =>
      [...new Set(records.flatMap((record) => Object.keys(record[field])))].map((k, index) =>
        heldOutTrace(tree, records, `${label}${k} ${task}`, (record) => record[field][k]?.value, (record) => record[field][k]?.interval, first + index + 3 * kind)));
  });
}

function stageMarks(tree) {
  const { stage, global_step: steps } = tree.curves.steps;
  const lines = [], names = [];
  stage.forEach((name, at) => {
    if (at && stage[at - 1] === name) return;
    const x = at ? placeOf(tree, steps[at - 1]) : placeOf(tree, 0);
    if (at) lines.push({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("--soft"), width: 1, dash: "dash" } });
    names.push({ x, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, text: plain(name), font: { size: 11, color: colour("--soft") } });
  });
  for (const step of tree.checkpoints) {
    const x = placeOf(tree, step);
    lines.push({ type: "line", x0: x, x1: x, y0: 0, y1: 0.04, yref: "paper", line: { color: colour("--ink"), width: 2 } });
  }
  return { shapes: lines, annotations: names };
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

function curve(tree, chart) {
  const title = choices.axis === "seconds" ? timeUnit(tree).name : choices.axis === "tokens" ? "tokens" : "step";
  const extra = { xaxis: { title: { text: title, standoff: 4 } }, yaxis: valueAxis(chart.unit), ...stageMarks(tree) };
  const held = chart.held_out ? heldOutTraces(tree, chart) : [];
  return { traces: [...metricTraces(tree, chart), ...held], layout: layout(extra), label: `${chart.title}: ${latest(tree, chart)}` };
}

function latest(tree, chart) {
  const told = chart.keys.map((key) => `${key} ${short(tree.curves.series[key].findLast((value) => value !== null))}`);
  return told.length ? `last values ${told.join(", ")}` : "measured on held-out problems";
}

function scatter(tree) {
  const { series, steps } = tree.curves;
  const sampled = {
    x: series["length/mean"], y: series["accuracy/sampled"], customdata: steps.global_step, name: "training steps", type: "scatter", mode: "markers",
    marker: { color: steps.global_step, colorscale: [[0, colour("--edge")], [1, colour("--line-1")]], size: 7, showscale: true, colorbar: { title: { text: "step" }, thickness: 10, outlinewidth: 0 } },
    hovertemplate: "step %{customdata}: length %{x:.4~g}, accuracy %{y:.1%}<extra></extra>",
  };
  const held = {
    x: tree.evaluations.map((record) => record.mean_tokens), y: tree.evaluations.map((record) => record.accuracy), customdata: tree.evaluations.map((record) => record.global_step),
    name: "held out", type: "scatter", mode: "markers", marker: { symbol: "diamond", size: 11, color: colour("--line-2") },
    hovertemplate: "held out, step %{customdata}: length %{x:.4~g}, accuracy %{y:.1%}<extra></extra>",
  };
  const axes = { xaxis: { title: { text: "mean length (tokens)", standoff: 4 } }, yaxis: { title: { text: "accuracy" }, tickformat: ".0%" }, hovermode: "closest" };
  return { traces: [sampled, held], layout: layout(axes), label: "Mean answer length against accuracy, a point a step" };
}

function rewardMap(tree) {
  const { steps, rewards, shares } = tree.rewards;
  const trace = {
    type: "heatmap", x: steps, y: rewards.map(short), z: shares, zmin: 0, zmax: 1, colorscale: [[0, colour("--surface")], [1, colour("--line-1")]],
    colorbar: { tickformat: ".0%", thickness: 10, outlinewidth: 0 }, hovertemplate: "step %{x}, reward %{y}: %{z:.1%} of answers<extra></extra>",
  };
  const axes = { xaxis: { title: { text: "step", standoff: 4 } }, yaxis: { title: { text: "reward" }, type: "category" }, hovermode: "closest" };
  return { traces: [trace], layout: layout(axes), label: "Share of answers by reward over the steps" };
}

function picture(tree, id) {
  if (id === "scatter") return scatter(tree);
  if (id === "rewards") return rewardMap(tree);
  return curve(tree, tree.curves.charts.find((chart) => chart.id === id));
}

async function draw(tree, plot, openStep) {
  const made = picture(tree, plot.dataset.chart);
  plot.setAttribute("aria-label", made.label);
  const first = !plot.dataset.drawn;
  plot.dataset.drawn = "yes";
  await Plotly.react(plot, made.traces, made.layout, { responsive: true, displaylogo: false, displayModeBar: false });
  if (first) plot.on("plotly_click", (event) => {
    const point = event.points[0];
    openStep(point.customdata ?? point.x);
  });
}

function startCharts(tree, openStep) {
  const plots = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting && !target.dataset.drawn) draw(tree, target, openStep);
  }, { rootMargin: "400px" });
  plots.forEach((plot) => watcher.observe(plot));
  const again = () => plots.filter((plot) => plot.dataset.drawn).forEach((plot) => draw(tree, plot, openStep));
  byId("chart-controls")?.addEventListener("input", () => {
    Object.assign(choices, { axis: byId("axis").value, smoothing: Number(byId("smoothing").value), log: byId("log").checked });
    again();
  });
  byId("chart-controls")?.addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
}
