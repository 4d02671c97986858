// Brings the page to life: samples first, because they need no library, then the charts.

async function start() {
  const tree = JSON.parse(await unpacked("data-tree"));
  await startSamples();
  if (!tree.curves.charts.length) return;
  await loadPlotly();
  startCharts((id) => picture(tree, id), tree.curves.steps.seconds.at(-1) ?? 0, openStep);
}

start().catch(tellFailure);
