// Tokens of an answer as spans, shaded by one of their figures; a pointer over one shows all that is known of it.

const tokens = { by: "", traces: null };
const SHADES = 5;

const FIGURES = {
  logprobs: {
    name: "log-prob", strength: (value) => -value / 4, side: () => "odd",
    legend: ["Log-prob by the sampler, in nats: ", ["odd", "0 to -4 and below"], ". What is shaded was unlikely, and drawn nevertheless."],
  },
  entropies: {
    name: "entropy", strength: (value) => value / 2.5, side: () => "odd",
    legend: ["Entropy before the update, in nats: ", ["odd", "0 to 2.5 and above"], ". Shaded is where the policy was undecided."],
  },
  ratios: {
    name: "ratio", strength: (value) => Math.abs(Math.log(value)) / 0.4, side: (value) => (value > 1 ? "up" : "down"),
    legend: ["Probability after the step's last pass over that by the sampler: ", ["up", "1 to 1.5 and above"], " or ", ["down", "1 to 0.67 and below"], "."],
  },
};

function shade(figure, value) {
  if (value === null || value === undefined) return "";
  const { strength, side } = FIGURES[figure];
  const level = Math.min(SHADES, Math.round(SHADES * strength(value)));
  return level > 0 ? `shade ${side(value)}-${level}` : "";
}

function tokenNodes(text, trace, figure) {
  const told = Object.entries(FIGURES).filter(([name]) => trace[name]);
  const nodes = [];
  let at = 0;
  trace.token_lengths.forEach((length, place) => {
    const last = place === trace.token_lengths.length - 1;
    const piece = text.slice(at, at + length);
    at += length;
    if (!piece && !(last && !length && at === text.length)) return;
    const title = told.map(([name, { name: words }]) => `${words} ${short(trace[name][place])}`).join(", ");
    const kind = piece ? "" : " end";
    nodes.push(element("span", { class: shade(figure, trace[figure]?.[place]) + kind, title }, piece));
  });
  return [...nodes, text.slice(at)];
}

function legendNodes(figure) {
  const scale = (side) => element("span", { class: "scale" }, ...Array.from({ length: SHADES }, (_, at) => element("span", { class: `shade ${side}-${at + 1}` })));
  const told = FIGURES[figure].legend.flatMap((part) => (typeof part === "string" ? [part] : [scale(part[0]), ` ${part[1]}`]));
  return [...told, " Answers without shades have no such figure recorded."];
}

async function colourTokens(figure) {
  tokens.by = figure;
  if (figure && !tokens.traces) tokens.traces = JSON.parse(await unpacked("data-traces"));
  const legend = byId("legend");
  legend.hidden = !figure;
  legend.replaceChildren(...(figure ? legendNodes(figure) : []));
}
