// The pictures of several runs: a line for each recipe, with a band where it has several runs; held-out points.

function lineTraces(tree, key) {
  return tree.curves.series[key].flatMap((line, index) => {
    if (!line) return [];
    const steps = tree.curves.lines[index];
    const base = { x: places(steps), legendgroup: index, type: "scatter", mode: "lines" };
    const smooth = (values) => smoothed(values, steps.stage, choices.smoothing);
    const present = line.mean.filter((value) => value !== null).length;
    const drawn = {
      ...base, mode: present < 3 ? "lines+markers" : "lines", y: smooth(line.mean), name: plain(tree.lines[index]), line: { color: lineColour(index), width: 2 },
      text: line.mean.map((value, at) => (line.low ? `${short(value)} (${short(line.low[at])} to ${short(line.high[at])})` : short(value))), hovertemplate: "%{text}",
    };
    if (!line.low) return [drawn];
    const edge = { ...base, line: { width: 0, color: lineColour(index) }, showlegend: false, hoverinfo: "skip" };
    const band = { fill: "tonexty", fillcolor: translucent(lineColour(index)) };
    return [{ ...edge, y: smooth(line.low) }, { ...edge, y: smooth(line.high), ...band }, drawn];
  });
}

function translucent(ink) {
  // #rrggbb with an alpha of a fifth.
  return `${ink}33`;
}

function heldOutLines(tree, task) {
  return tree.curves.held_out[task].flatMap((points, index) => {
    if (!points.length) return [];
    const y = points.map((point) => point.accuracy);
    const several = (point) => (point.runs > 1 ? ` (mean of ${point.runs} runs)` : "");
    return [{
      x: points.map((point) => placeOf(tree.curves.lines[index], point.global_step)), y, name: plain(tree.lines[index]), type: "scatter", mode: "lines+markers",
      line: { color: lineColour(index), width: 1, dash: "dot" }, marker: { symbol: "diamond", size: 9, color: lineColour(index) },
      text: points.map(several), hovertemplate: "%{y:.1%}%{text}", ...errorBars(points.map((point) => point.bounds), y, lineColour(index)),
    }];
  });
}

function overlayPicture(tree, id) {
  const xaxis = { title: { text: axisTitle(), standoff: 4 } };
  if (id.startsWith("held-")) {
    const task = Object.keys(tree.curves.held_out)[Number(id.slice("held-".length))];
    return { traces: heldOutLines(tree, task), layout: layout({ showlegend: true, xaxis, yaxis: valueAxis("share") }), label: `Held-out accuracy over steps: ${task}` };
  }
  const chart = tree.curves.charts.find((found) => found.id === id);
  return { traces: lineTraces(tree, chart.key), layout: layout({ showlegend: true, xaxis, yaxis: valueAxis(chart.unit) }), label: `${chart.title}, a line for each recipe` };
}

async function start() {
  const tree = JSON.parse(await unpacked("data-tree"));
  await loadPlotly();
  const longest = Math.max(0, ...tree.curves.lines.map((line) => line.seconds.at(-1) ?? 0));
  startCharts((id) => overlayPicture(tree, id), longest);
}

start().catch(tellFailure);
