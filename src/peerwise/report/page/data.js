// What the page carries: packed texts, unpacked on demand; and how numbers are written.

function packed(id) {
  const binary = atob(document.getElementById(id).textContent);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

async function unpacked(id) {
  const stream = new Blob([packed(id)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function element(tag, attributes = {}, ...children) {
  // Children that are strings become text nodes: nothing that a model wrote is ever parsed as markup.
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function short(value) {
  if (value === null || value === undefined) return "–";
  return String(Number(value.toPrecision(4)));
}

async function loadPlotly() {
  // The policy of the page lets run exactly this library, known by its hash.
  document.head.append(element("script", {}, await unpacked("data-plotly")));
}

function tellFailure(error) {
  const told = `The curves and samples cannot be shown: ${error.message}. A browser of 2023 or later is needed.`;
  byId("content").prepend(element("p", { class: "note", role: "alert" }, told));
}
