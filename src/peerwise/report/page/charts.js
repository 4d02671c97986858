// The pictures of one run: its curves with held-out points, length against accuracy, rewards over steps.

function metricTraces(tree, chart) {
  const { series, steps } = tree.curves;
  const x = places(steps);
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
  return {
    x: kept.map((record) => placeOf(tree.curves.steps, record.global_step)), y, customdata: kept.map((record) => record.global_step),
    name: plain(name), type: "scatter", mode: "lines+markers", line: { color: lineColour(index), width: 1, dash: "dot" },
    marker: { symbol: "diamond", size: 9, color: lineColour(index) }, text: kept.map((record) => plain(record.when)),
    hovertemplate: "%{y:.4~g} %{text}", ...errorBars(kept.map(bounds), y, lineColour(index)),
  };
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
  const { stage, global_step: ends } = tree.curves.steps;
  const lines = [], names = [];
  stage.forEach((name, at) => {
    if (at && stage[at - 1] === name) return;
    const x = placeOf(tree.curves.steps, at ? ends[at - 1] : 0);
    if (at) lines.push({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("--soft"), width: 1, dash: "dash" } });
    names.push({ x, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, text: plain(name), font: { size: 11, color: colour("--soft") } });
  });
  for (const step of tree.checkpoints) {
    const x = placeOf(tree.curves.steps, step);
    lines.push({ type: "line", x0: x, x1: x, y0: 0, y1: 0.04, yref: "paper", line: { color: colour("--ink"), width: 2 } });
  }
  return { shapes: lines, annotations: names };
}

function curve(tree, chart) {
  const extra = { xaxis: { title: { text: axisTitle(), standoff: 4 } }, yaxis: valueAxis(chart.unit), ...stageMarks(tree) };
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
