// The recorded groups: filtered in memory, one page of them in the document at a time.

const PAGE = 10;
const SHOWN_AT_FIRST = 4000;
const sample = { all: [], found: [], page: 0 };

const KINDS = {
  all: () => true,
  mixed: (group) => group.right > 0 && group.right < group.size,
  right: (group) => group.right === group.size,
  wrong: (group) => group.right === 0,
  truncated: (group) => group.truncated > 0,
  unread: (group) => group.unread > 0,
  failed: (group) => group.failed > 0,
  disagreement: (group) => group.disagreement > 0,
};

const ORDERS = {
  step: () => 0,
  latest: (a, b) => b.global_step - a.global_step,
  longest: (a, b) => b.longest - a.longest,
};

function holds(group, words) {
  const texts = [group.problem, group.gold ?? "", ...group.messages.map((message) => message.content ?? "")];
  return texts.some((text) => text.toLowerCase().includes(words))
    || group.answers.some((answer) => answer.text.toLowerCase().includes(words) || (answer.extracted ?? "").toLowerCase().includes(words));
}

function applyFilters() {
  const from = byId("from").value === "" ? -Infinity : Number(byId("from").value);
  const to = byId("to").value === "" ? Infinity : Number(byId("to").value);
  const words = byId("search").value.trim().toLowerCase();
  const kind = KINDS[byId("kind").value];
  sample.found = sample.all.filter((group) =>
    group.global_step >= from && group.global_step <= to && kind(group) && (!words || holds(group, words)));
  sample.found.sort(ORDERS[byId("order").value]);
  showPage(0);
}

function clearFilters() {
  // The colour of tokens is no filter, so it stays.
  byId("sample-controls").reset();
  if (byId("colouring")) byId("colouring").value = tokens.by;
  applyFilters();
}

function showPage(page) {
  const pages = Math.max(1, Math.ceil(sample.found.length / PAGE));
  sample.page = Math.min(Math.max(page, 0), pages - 1);
  const first = sample.page * PAGE;
  const shown = sample.found.slice(first, first + PAGE);
  byId("groups").replaceChildren(...shown.map(groupCard));
  const range = shown.length ? `, ${first + 1} to ${first + shown.length} shown` : "";
  byId("sample-status").textContent = `${sample.found.length} of ${sample.all.length} groups${range}`;
  byId("page").textContent = `page ${sample.page + 1} of ${pages}`;
  byId("previous").disabled = sample.page === 0;
  byId("next").disabled = sample.page === pages - 1;
  document.querySelector(".pager").hidden = pages === 1;
}

const DISAGREEMENTS = {
  paid: "wrong, and earned as much as a right answer of this group",
  judged: "the same answer was judged otherwise in this group",
  gold: "counted wrong, and its last line ends with the gold",
};

function longText(text, nodes = (shown) => [shown]) {
  // `nodes` makes the content from the text that is shown.
  const block = element("pre", { dir: "auto" }, ...nodes(text.slice(0, SHOWN_AT_FIRST)));
  if (text.length <= SHOWN_AT_FIRST) return [block];
  const more = element("button", { type: "button" }, `Show all ${text.length.toLocaleString("en")} characters`);
  more.addEventListener("click", () => { block.replaceChildren(...nodes(text)); more.remove(); });
  return [block, more];
}

function readBy(answer) {
  const [found, compared] = (answer.rule ?? "").split(", ");
  if (answer.extracted === null) return ["no answer read", ...(found && found !== "none" ? [" (", element("bdi", {}, found), ")"] : [])];
  const read = ["read ", element("bdi", { class: "answer" }, answer.extracted.slice(0, 200))];
  if (!found) return read;
  return [...read, " (by ", element("bdi", {}, found), ...(compared ? ["; compared as ", element("bdi", {}, compared)] : []), ")"];
}

function answerCard(answer, trace) {
  const state = answer.failed !== null ? "failed" : answer.correct ? "right" : "wrong";
  const ended = answer.finish === "length" ? "cut off at the limit" : `ended by ${answer.finish ?? "–"}`;
  const parts = Object.entries(answer.parts).flatMap(([name, value], at) => [at ? ", " : "", element("bdi", {}, name), ` ${short(value)}`]);
  const card = element("div", { class: `card ${state === "right" ? "right" : "wrong"}` },
    element("p", {}, element("span", { class: "badge" }, state), ` advantage ${short(answer.advantage)}, reward ${short(answer.reward)}, `, ...readBy(answer)),
    element("p", { class: "parts" }, `${short(answer.tokens)} tokens, ${ended}. `, ...(parts.length ? ["Parts: ", ...parts] : [])));
  if (answer.failed !== null) card.append(element("p", { class: "parts" }, "The reward failed: ", element("bdi", {}, answer.failed)));
  if (answer.disagrees.length) card.append(element("p", { class: "warn" }, `Disagreement: ${answer.disagrees.map((kind) => DISAGREEMENTS[kind]).join("; ")}.`));
  card.append(...(tokens.by && trace ? longText(answer.text, (shown) => tokenNodes(shown, trace, tokens.by)) : longText(answer.text)));
  return card;
}

function groupCard(group) {
  const link = element("a", { href: `#group-${group.id}`, "aria-label": `Link to group ${group.id}` }, `#${group.id}`);
  const head = element("div", { class: "group-head" },
    element("h3", {}, element("bdi", {}, group.problem)), link,
    element("span", { class: "note" }, `${group.stage} step ${short(group.step)}, ${group.right} of ${group.size} right`));
  const asked = group.messages.flatMap((message) => [element("p", { class: "note" }, element("bdi", {}, message.role ?? "")), ...longText(message.content ?? "")]);
  const gold = element("p", {}, "Gold: ", element("bdi", { class: "answer" }, (group.gold ?? "none").slice(0, 500)));
  return element("article", { id: `group-${group.id}`, tabindex: "-1" }, head, ...asked, gold,
    element("div", { class: "answers" }, ...group.answers.map((answer, place) => answerCard(answer, tokens.traces?.[group.id]?.[place]))));
}

function openStep(step) {
  if (!sample.all.length) return;
  clearFilters();
  byId("from").value = byId("to").value = step;
  applyFilters();
  byId("samples").scrollIntoView();
}

function openLinked() {
  if (/^#step-\d+$/.test(location.hash)) openStep(Number(location.hash.slice("#step-".length)));
  if (!location.hash.startsWith("#group-")) return;
  const id = location.hash.slice("#group-".length);
  if (!document.getElementById(`group-${id}`)) {
    const place = sample.all.findIndex((group) => group.id === id);
    if (place < 0) {
      byId("sample-status").textContent = `There is no group ${id} in this run.`;
      return;
    }
    clearFilters();
    showPage(Math.floor(place / PAGE));
  }
  const shown = document.getElementById(`group-${id}`);
  shown.scrollIntoView();
  shown.focus({ preventScroll: true });
}

async function startSamples() {
  const controls = byId("sample-controls");
  if (!controls) return;
  sample.all = JSON.parse(await unpacked("data-groups"));
  let waiting = 0;
  const soon = () => { clearTimeout(waiting); waiting = setTimeout(applyFilters, 150); };
  controls.addEventListener("input", (event) => { if (event.target.id !== "colouring") soon(); });
  byId("colouring")?.addEventListener("input", async (event) => {
    await colourTokens(event.target.value);
    showPage(sample.page);
  });
  byId("clear").addEventListener("click", clearFilters);
  controls.addEventListener("submit", (event) => event.preventDefault());
  byId("previous").addEventListener("click", () => showPage(sample.page - 1));
  byId("next").addEventListener("click", () => showPage(sample.page + 1));
  applyFilters();
  openLinked();
  addEventListener("hashchange", openLinked);
}
