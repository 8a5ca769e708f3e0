"use strict";
/* The page of episodes. Data: `meta` (names, tiles), `index` (one value a column and episode), `palette` (token id and
   text), blocks of a few dozen episodes. Index and palette are opened at start, a block when one of its episodes is
   looked at. Written by the page alone: it loads nothing. */

const $ = (id) => document.getElementById(id);
const make = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const STATUS = ["finished", "truncated", "failed"];
const ROW = 26; // pixels, as in the style sheet
const MARGIN = 10; // rows drawn beyond either end of the view
const RARE = 2300; // thousandths: sampled at a probability below one tenth

async function inflate(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const meta = JSON.parse($("meta").textContent);
let index, palette;
let shown = []; // numbers of the listed episodes, in their order
let chosen = -1; // number of the open episode
let matches = null; // episodes that hold the searched text; null: no such search
let sort = { column: null, down: false };
let siblings = false;
let hideRead = false;
let turnNow = 0;
let searching = 0; // a newer text search ends an older one
const groups = new Map(); // key of a group → its episodes

/* --- data ------------------------------------------------------------------------------------------------------- */

const blocks = new Map(); // number → promise of its episodes; a few are kept
function block(number) {
  if (!blocks.has(number)) {
    if (blocks.size > 12) blocks.delete(blocks.keys().next().value);
    blocks.set(number, inflate(`block${number}`));
  }
  return blocks.get(number);
}
const episode = async (e) => (await block(Math.floor(e / meta.block)))[e % meta.block];
const groupKey = (e) => `${index.run[e]}/${index.step[e]}/${index.tag[e]}/${index.group[e]}`;
const outcome = (e) => (index.success[e] ? "solved" : STATUS[index.status[e]]);

/* --- the list --------------------------------------------------------------------------------------------------- */

const COLUMNS = [
  ["#", (e) => e, (e) => e + 1],
  ["tag", (e) => meta.tags[index.tag[e]], null, "text"],
  ["seed", (e) => index.seed[e]],
  ["mem.", (e) => index.member[e]],
  ["end", (e) => outcome(e), (e) => ({ solved: "solved", finished: "ended", truncated: "limit", failed: "failed" })[outcome(e)]],
  ["return", (e) => index.return[e], (e) => index.return[e].toFixed(2)],
  ["turns", (e) => index.turns[e]],
  ["tokens", (e) => index.tokens[e]],
];

function fill(select, any, names, values) {
  select.replaceChildren(new Option(any, ""));
  names.forEach((name, i) => select.append(new Option(name, values ? values[i] : i)));
  select.hidden = names.length < 2;
}

function filter() {
  const words = matches ? [] : $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [run, step, tag, want] = ["run", "step", "tag", "outcome"].map((id) => $(id).value);
  shown = [];
  for (let e = 0; e < meta.episodes; e++) {
    if (run !== "" && index.run[e] !== +run) continue;
    if (step !== "" && index.step[e] !== +step) continue;
    if (tag !== "" && index.tag[e] !== +tag) continue;
    if (want === "solved" && !index.success[e]) continue;
    if (want === "unsolved" && index.success[e]) continue;
    if ((want === "truncated" || want === "failed") && STATUS[index.status[e]] !== want) continue;
    if (matches && !matches.has(e)) continue;
    if (words.length) {
      const facts = `${meta.tags[index.tag[e]]} seed ${index.seed[e]} step ${index.step[e]} ${outcome(e)} ` +
        `${meta.ends[index.end[e]]} ${meta.runs[index.run[e]]}`.toLowerCase();
      if (!words.every((word) => facts.toLowerCase().includes(word))) continue;
    }
    shown.push(e);
  }
  if (sort.column !== null) {
    const value = COLUMNS[sort.column][1];
    const way = sort.down ? -1 : 1;
    shown.sort((a, b) => (value(a) < value(b) ? -way : value(a) > value(b) ? way : a - b));
  }
  summarise();
  $("rows").scrollTop = 0;
  drawRows();
}

function summarise() {
  let solved = 0, total = 0, usable = 0;
  for (const e of shown) {
    solved += index.success[e];
    if (index.status[e] !== 2) { usable++; total += index.return[e]; }
  }
  const share = shown.length ? `, ${((100 * solved) / shown.length).toFixed(1)} % solved` : "";
  const mean = usable ? `, mean return ${(total / usable).toFixed(3)}` : "";
  $("summary").textContent = `${shown.length} of ${meta.episodes} episodes${share}${mean}`;
}

function drawColumns() {
  $("columns").replaceChildren(...COLUMNS.map(([name, , , style], i) => {
    const arrow = sort.column === i ? (sort.down ? " ↓" : " ↑") : "";
    const button = make("button", style, name + arrow);
    button.onclick = () => {
      sort = { column: i, down: sort.column === i && !sort.down };
      drawColumns();
      filter();
    };
    return button;
  }));
}

function drawRows() {
  const pane = $("rows");
  const first = Math.max(0, Math.floor(pane.scrollTop / ROW) - MARGIN);
  const last = Math.min(shown.length, Math.ceil((pane.scrollTop + pane.clientHeight) / ROW) + MARGIN);
  $("canvas").style.height = `${shown.length * ROW}px`;
  const rows = [];
  for (let i = first; i < last; i++) {
    const e = shown[i];
    const row = make("div", `row${e === chosen ? " chosen" : ""}`);
    row.style.top = `${i * ROW}px`;
    row.dataset.episode = e;
    for (const [name, value, text, style] of COLUMNS) {
      row.append(make("span", name === "end" ? outcome(e) : style, (text || value)(e)));
    }
    rows.push(row);
  }
  $("canvas").replaceChildren(...rows);
}

/* Search in what was said: block by block, so that the page stays alive. */
async function searchText() {
  const text = $("search").value.trim().toLowerCase();
  const mine = ++searching;
  matches = null;
  if (!text) return filter();
  const found = new Set();
  for (let b = 0; b < meta.blocks; b++) {
    const episodes = await inflate(`block${b}`);
    if (mine !== searching) return;
    episodes.forEach((one, i) => {
      const said = one.k.map((turn) => [turn[0], turn[1], turn[2].join(" "), ...turn[5]].join("\n")).join("\n");
      if (`${said}\n${one.f || ""}`.toLowerCase().includes(text)) found.add(b * meta.block + i);
    });
    $("summary").textContent = `searching “${text}” … ${Math.round((100 * (b + 1)) / meta.blocks)} %`;
  }
  matches = found;
  filter();
  $("summary").textContent += ` with “${text}”`;
}

/* --- boards ----------------------------------------------------------------------------------------------------- */

const tiles = {}; // tag → symbol → picture
async function loadTiles() {
  for (const [tag, known] of Object.entries(meta.tiles)) {
    tiles[tag] = {};
    await Promise.all(Object.entries(known).map(async ([symbol, source]) => {
      const image = new Image();
      image.src = source;
      await image.decode();
      tiles[tag][symbol] = image;
    }));
  }
}

/* The observation: its board as the environment draws it, what else it says as text. */
function board(tag, observation) {
  const node = make("div");
  if (observation === null) return node;
  const known = tiles[tag];
  const lines = observation.split("\n").map((line) => Array.from(line));
  let [from, to] = [0, 0];
  for (let start = 0; start < lines.length; ) {
    let stop = start + 1;
    while (stop < lines.length && lines[stop].length === lines[start].length) stop++;
    if (lines[start].length >= 2 && stop - start >= 2 && stop - start > to - from) [from, to] = [start, stop];
    start = stop;
  }
  const grid = lines.slice(from, to);
  if (!known || !grid.length || !grid.every((line) => line.every((symbol) => known[symbol]))) {
    node.append(make("pre", "text", observation));
    return node;
  }
  const text = (part) => { if (part.length) node.append(make("pre", "text", part.map((l) => l.join("")).join("\n"))); };
  text(lines.slice(0, from));
  const side = known[grid[0][0]].width;
  const canvas = make("canvas", "board");
  canvas.width = side * grid[0].length;
  canvas.height = side * grid.length;
  canvas.style.width = `${Math.min(166, Math.max(canvas.width, 24 * grid[0].length))}px`;
  canvas.title = observation;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", observation);
  const pen = canvas.getContext("2d");
  grid.forEach((line, y) => line.forEach((symbol, x) => pen.drawImage(known[symbol], x * side, y * side)));
  node.append(canvas);
  text(lines.slice(to));
  return node;
}

/* --- one episode ------------------------------------------------------------------------------------------------ */

let open = null; // what hovering reads: the open episode
let lazy = null; // draws a turn's tokens when it comes into view

async function show(e, keepView) {
  if (e === undefined || e < 0 || e >= meta.episodes) return;
  chosen = e;
  history.replaceState(null, "", `#${e + 1}`);
  drawRows();
  const one = await episode(e);
  if (chosen !== e) return; // another was chosen meanwhile
  turnNow = 0;
  const detail = $("detail");
  detail.replaceChildren(header(e, one), bar(), siblings ? await sideBySide(e) : turnsOf(e, one));
  detail.classList.toggle("hide-read", hideRead);
  if (!keepView) detail.scrollTop = 0;
}

function header(e, one) {
  const node = make("div");
  const title = make("h2", "", `${meta.tags[index.tag[e]]} · seed ${index.seed[e]} · member ${index.member[e]} `);
  title.append(make("span", outcome(e), outcome(e)));
  const facts = make("p", "facts");
  const add = (name, value) => facts.append(`${name} `, make("b", "", value), " · ");
  add("run", meta.runs[index.run[e]]);
  if (index.step[e] !== null) add("step", index.step[e]);
  add("group", index.group[e]);
  add("return", index.return[e]);
  add("turns", index.turns[e]);
  add("tokens", index.tokens[e]);
  add("ended by", meta.ends[index.end[e]]);
  if (one.u !== null) add("luck", one.u);
  add("weights", one.v[0] === one.v[1] ? one.v[0] : one.v.join("–"));
  for (const [name, value] of Object.entries(one.m)) add(name, value);
  facts.lastChild.remove();
  node.append(title, facts);
  return node;
}

function bar() {
  const node = make("div", "bar");
  const button = (name, pressed, act) => {
    const one = make("button", "", name);
    one.setAttribute("aria-pressed", pressed);
    one.onclick = act;
    node.append(one);
  };
  button("Turns", !siblings, () => toggleSiblings(false));
  button("Siblings", siblings, () => toggleSiblings(true));
  if (!siblings) {
    button("Hide what it read", hideRead, toggleRead);
    const legend = make("span", "legend");
    legend.innerHTML = '<span class="tokens"><i class="read">read</i> <span class="own">written by the policy</span> ' +
      '<span class="own rare">at p &lt; 0.1</span></span>';
    node.append(legend);
  }
  return node;
}

function turnsOf(e, one) {
  const tag = meta.tags[index.tag[e]];
  const node = make("div");
  open = { e, one, starts: [], sampled: [] };
  let at = 0, own = 0;
  const runsOf = one.k.map(() => []);
  const rest = [];
  for (const [turn, policy, length] of one.r) {
    (runsOf[turn] || rest).push([at, length, policy, own]);
    at += length;
    if (policy) own += length;
  }
  if (lazy) lazy.disconnect();
  lazy = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting || !entry.target.pending) continue;
      entry.target.pending();
      entry.target.pending = null;
      lazy.unobserve(entry.target);
    }
  }, { root: $("detail"), rootMargin: "600px" });
  one.k.forEach(([observation, , actions, reward, penalty, notes], k) => {
    const turn = make("div", `turn${k ? "" : " current"}`);
    const side = make("div", "side"), main = make("div", "main");
    const what = actions.length ? actions.join(", ") : "no action";
    const title = make("h3", "", `Turn ${k + 1}: ${what} · `);
    title.append(make("span", "reward", `reward ${reward}${penalty ? ` (penalty ${penalty})` : ""}`));
    main.append(title);
    turn.pending = () => {
      side.append(board(tag, observation));
      if (one.c.includes(k)) main.append(make("p", "hint", "A new context: nothing above was read for this turn."));
      main.append(tokens(one, runsOf[k]), ...notes.map((note) => make("p", "note", note)));
    };
    turn.append(side, main);
    node.append(turn);
    lazy.observe(turn);
  });
  const end = make("div", "turn");
  const side = make("div", "side"), main = make("div", "main");
  main.append(make("h3", "", `The end: ${meta.ends[index.end[e]]}`));
  if (one.f !== null) side.append(board(tag, one.f));
  else main.append(make("p", "hint", "The last observation was not recorded."));
  if (rest.length) main.append(tokens(one, rest));
  end.append(side, main);
  node.append(end);
  return node;
}

function tokens(one, runs) {
  const node = make("div", "tokens");
  for (const [at, length, policy, own] of runs) {
    for (let i = 0; i < length; i++) {
      const rare = policy && one.l[own + i] > RARE ? " rare" : "";
      const span = make("span", policy ? `own${i % 2 ? " odd" : ""}${rare}` : "read", palette[one.t[at + i]][1]);
      span.dataset.token = at + i;
      if (policy) span.dataset.own = own + i;
      node.append(span);
    }
  }
  return node;
}

function tip(event) {
  const span = event.target.closest ? event.target.closest("[data-token]") : null;
  $("tip").hidden = !span || !open;
  if (!span || !open) return;
  const { one, e } = open;
  const token = +span.dataset.token;
  const [id, text] = palette[one.t[token]];
  const own = span.dataset.own;
  const lines = [`token ${token}: id ${id} ${JSON.stringify(text)}`];
  if (own !== undefined) {
    const logProb = -one.l[own] / 1000;
    lines.push("written by the policy", `log-prob ${logProb.toFixed(3)}, p ${Math.exp(logProb).toFixed(3)}`);
  } else {
    lines.push("read by the policy");
  }
  if (one.a) lines.push(`advantage ${(one.a[token] / 1000).toFixed(3)}`);
  lines.push(`mask ${own !== undefined && index.status[e] !== 2 ? 1 : 0}`);
  $("tip").textContent = lines.join("\n");
  const box = span.getBoundingClientRect();
  const left = Math.max(4, Math.min(box.left, innerWidth - $("tip").offsetWidth - 8));
  const below = box.bottom + 6 + $("tip").offsetHeight < innerHeight;
  $("tip").style.left = `${left}px`;
  $("tip").style.top = `${below ? box.bottom + 6 : box.top - $("tip").offsetHeight - 6}px`;
}

/* --- the group -------------------------------------------------------------------------------------------------- */

async function sideBySide(e) {
  const members = groups.get(groupKey(e)) || [e];
  const tag = meta.tags[index.tag[e]];
  const node = make("div", "group");
  for (const other of members) {
    const one = await episode(other);
    const column = make("div", `member${other === e ? " chosen" : ""}`);
    const title = make("h3", "", `member ${index.member[other]} · ${index.return[other].toFixed(2)} · `);
    title.append(make("span", outcome(other), outcome(other)));
    title.onclick = () => { siblings = false; show(other); };
    column.append(title);
    one.k.forEach(([observation, , actions, reward], k) => {
      const cell = make("div", "cell");
      const said = `${k + 1}: ${actions.length ? actions.join(", ") : "no action"} · ${reward}`;
      cell.append(board(tag, observation), make("div", "acts", said));
      column.append(cell);
    });
    const end = make("div", "cell");
    end.append(board(tag, one.f), make("div", "acts hint", meta.ends[index.end[other]]));
    column.append(end);
    node.append(column);
  }
  return node;
}

/* --- what the reader does --------------------------------------------------------------------------------------- */

function toggleSiblings(on) { siblings = on; show(chosen); }
function toggleRead() { hideRead = !hideRead; show(chosen, true); }
function toggleTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
}

function walk(by) {
  const at = shown.indexOf(chosen);
  const next = shown[Math.max(0, Math.min(shown.length - 1, at < 0 ? 0 : at + by))];
  show(next);
  const pane = $("rows"), top = shown.indexOf(next) * ROW;
  if (top < pane.scrollTop) pane.scrollTop = top;
  if (top + ROW > pane.scrollTop + pane.clientHeight) pane.scrollTop = top + ROW - pane.clientHeight;
}

function turn(by) {
  const all = document.querySelectorAll(".turn");
  if (!all.length) return;
  all[turnNow]?.classList.remove("current");
  turnNow = Math.max(0, Math.min(all.length - 1, turnNow + by));
  all[turnNow].classList.add("current");
  all[turnNow].scrollIntoView({ block: "nearest" });
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.key === "Escape") {
    $("search").value = "";
    searching++;
    matches = null;
    document.activeElement.blur();
    return filter();
  }
  if (/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
    if (event.key === "Enter" && document.activeElement === $("search")) searchText();
    return;
  }
  const acts = {
    ArrowDown: () => walk(1), j: () => walk(1), ArrowUp: () => walk(-1), k: () => walk(-1),
    ArrowRight: () => turn(1), n: () => turn(1), ArrowLeft: () => turn(-1), p: () => turn(-1),
    s: () => toggleSiblings(!siblings), c: toggleRead, t: toggleTheme,
    "/": () => $("search").focus(), "?": () => $("keys").showModal(),
  };
  if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
}

async function start() {
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  [index, palette] = await Promise.all([inflate("index"), inflate("palette"), loadTiles()]);
  for (let e = 0; e < meta.episodes; e++) {
    const name = groupKey(e);
    if (groups.has(name)) groups.get(name).push(e);
    else groups.set(name, [e]);
  }
  const steps = [...new Set(index.step)].filter((step) => step !== null).sort((a, b) => a - b);
  fill($("run"), "all runs", meta.runs);
  fill($("step"), "all steps", steps.map((step) => `step ${step}`), steps);
  fill($("tag"), "all tags", meta.tags);
  for (const id of ["run", "step", "tag", "outcome"]) $(id).onchange = filter;
  $("search").oninput = () => { matches = null; searching++; filter(); };
  $("rows").onscroll = drawRows;
  $("canvas").onclick = (event) => {
    const row = event.target.closest(".row");
    if (row) show(+row.dataset.episode);
  };
  $("theme").onclick = toggleTheme;
  $("help").onclick = () => $("keys").showModal();
  $("detail").addEventListener("mouseover", tip);
  $("detail").addEventListener("mouseleave", () => { $("tip").hidden = true; });
  addEventListener("keydown", key);
  addEventListener("resize", drawRows);
  addEventListener("hashchange", () => show(+location.hash.slice(1) - 1));
  drawColumns();
  filter();
  await show(location.hash ? +location.hash.slice(1) - 1 : shown[0]);
  document.documentElement.dataset.ready = "yes"; // for tests: everything above has run
}

start().catch((error) => { $("detail").replaceChildren(make("p", "failed", `This page cannot be shown: ${error}`)); throw error; });
