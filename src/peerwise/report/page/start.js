// Brings the page to life: samples first, because they need no library, then the charts.

async function start() {
  const tree = JSON.parse(await unpacked("data-tree"));
  await startSamples();
  if (!tree.curves.charts.length) return;
  // The policy of the page lets run exactly this library, known by its hash.
  document.head.append(element("script", {}, await unpacked("data-plotly")));
  startCharts(tree, openStep);
}

start().catch((error) => {
  const told = `The curves and samples cannot be shown: ${error.message}. A browser of 2023 or later is needed.`;
  byId("content").prepend(element("p", { class: "note", role: "alert" }, told));
});
