// Draw dashboards with Grafana's components in Chromium, over a Prometheus that runs, check what is shown, and leave pictures.
// node check.mjs TASK: TASK is a file of JSON, as tools/dashboards_check/drawing.py writes it.
import { mkdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join, resolve } from "node:path";
import { build } from "esbuild";
import puppeteer from "puppeteer-core";

const task = JSON.parse(readFileSync(process.argv[2], "utf8"));
const here = import.meta.dirname;
const PATIENCE = 180_000; // milliseconds: other programs may keep the machine busy
const models = Object.fromEntries(task.dashboards.map((path) => [path.replace(/.*\/|\.json$/g, ""), JSON.parse(readFileSync(path, "utf8"))]));
const uids = new Set(Object.values(models).map(({ uid }) => uid));

await build({
  absWorkingDir: here, entryPoints: ["page.jsx"], bundle: true, outfile: join(here, "bundle", "page.js"), format: "iife", logLevel: "error", minify: true,
  define: { "process.env.NODE_ENV": '"production"', global: "window" }, loader: { ".svg": "text", ".woff2": "empty", ".woff": "empty", ".ttf": "empty" },
  alias: { "react-router-dom-v5-compat": "react-router-dom", "@grafana/plugin-compat/datasources": join(here, "plugin_compat.js") },
});
const HTML = '<!doctype html><meta charset="utf-8"><title>Dashboard</title><link rel="icon" href="data:,"><link rel="stylesheet" href="page.css"><style>body { margin: 0 !important; } [role="grid"] { content-visibility: visible !important; }</style><div id="root"></div><script>window.grafanaBootData = { settings: {}, user: {}, navTree: [] };</script><script src="page.js"></script>';
const weights = { Regular: 400, Medium: 500 };
const fonts = Object.fromEntries(Object.entries(weights).map(([name, weight]) => [
  `/public/fonts/inter/Inter-${name}.woff2`, join(here, "node_modules", "@fontsource", "inter", "files", `inter-latin-${weight}-normal.woff2`),
]));
const types = { css: "text/css", js: "text/javascript" };
const server = createServer(({ url }, response) => {
  const type = types[/^\/page\.(css|js)$/.exec(url)?.[1]];
  if (type) response.writeHead(200, { "content-type": type }).end(readFileSync(join(here, "bundle", url)));
  else if (url in fonts) response.writeHead(200, { "content-type": "font/woff2" }).end(readFileSync(fonts[url]));
  else if (url === "/") response.writeHead(200, { "content-type": "text/html" }).end(HTML);
  else response.writeHead(200, { "content-type": "image/svg+xml" }).end('<svg xmlns="http://www.w3.org/2000/svg"/>'); // icons are not in npm
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const browser = await puppeteer.launch({ executablePath: task.chromium, args: ["--no-sandbox", "--hide-scrollbars", "--force-color-profile=srgb"], protocolTimeout: PATIENCE });
mkdirSync(task.pictures, { recursive: true });

const faults = [];
const kinds = {};
for (const theme of task.themes) {
  for (const [name, model] of Object.entries(models)) await checked(name, model, theme);
}
await browser.close();
server.close();
for (const fault of faults) console.log(fault);
const panels = Object.entries(kinds).map(([kind, count]) => `${count} ${kind}`).join(", ");
console.log(`${Object.keys(models).length} dashboards in ${task.themes.join(" and ")}: ${panels}; ${faults.length} faults`);
process.exit(faults.length ? 1 : 0);

async function checked(name, model, theme) {
  const fault = (words) => faults.push(`${name} (${theme}): ${words}`);
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("pageerror", (error) => fault(`the page failed: ${error.message.slice(0, 400)}`));
  page.on("console", async (message) => {
    if (!["error", "warn"].includes(message.type())) return;
    const words = await Promise.all(message.args().map((each) => each.evaluate((value) => value?.stack ?? String(value)).catch(() => "")));
    fault(`console: ${(words.join(" ") || message.text()).slice(0, 800)}`);
  });
  await page.setViewport({ width: task.width, height: 900 });
  const { panels } = await drawn(page, model, theme);
  if (task.isCompact) {
    model = compacted(model, new Map(panels.filter(hasData).map((panel) => [panel.title, panel])));
    await drawn(page, model, theme);
  }
  const lowest = await page.evaluate(() => Math.max(...[...document.querySelectorAll("[data-viz-panel-key]")].map((each) => each.getBoundingClientRect().bottom)));
  const height = Math.ceil(lowest + 16);
  await page.setViewport({ width: task.width, height });
  judged(model, await settled(page), theme, fault);
  const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0));
  if ((background < 382) !== (theme === "dark")) fault("the page has the background of the other theme");
  const path = join(task.pictures, `${name}-${theme}.webp`);
  await page.screenshot({ path, type: "webp", quality: task.quality, captureBeyondViewport: false, clip: { x: 0, y: 0, width: task.width, height } });
  await page.close();
}

async function drawn(page, model, theme) {
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.evaluate(() => document.fonts.ready);
  await page.evaluate((model, source) => window.draw(model, source), model, { ...task.source, theme });
  return settled(page);
}

// The dashboard without closed rows, and without panels that have no data, by title. The others of a line share its width,
// and tables and lanes are as high as their rows.
function compacted(model, withData) {
  const rowsOf = { table: ([frame]) => frame.length, "status-history": (frames) => frames.length };
  const heightOf = ({ title, type, gridPos: { h } }) => (type in rowsOf ? Math.min(h, 3 + rowsOf[type](withData.get(title).frames)) : h);
  const kept = model.panels.filter(({ type, title, collapsed }) => (type === "row" ? !collapsed : withData.has(title)));
  const shown = kept.filter(({ type }, at) => type !== "row" || (kept[at + 1] ?? { type }).type !== "row");
  let y = 0;
  const panels = [...new Set(shown.map(({ gridPos }) => gridPos.y))].flatMap((line) => {
    const beside = shown.filter(({ gridPos }) => gridPos.y === line);
    const scale = 24 / beside.reduce((sum, { gridPos }) => sum + gridPos.w, 0);
    const top = y;
    let x = 0;
    const h = Math.max(...beside.map(heightOf));
    y += h;
    return beside.map((panel) => {
      const gridPos = { x, y: top, w: panel.gridPos.w * scale, h };
      x += gridPos.w;
      return { ...panel, gridPos };
    });
  });
  return { ...model, panels };
}

function hasData({ kind, state, frames }) {
  if (state !== "Done") return false;
  const fields = frames.flatMap(({ fields }) => fields);
  const answers = kind === "table" ? fields : fields.filter(({ type }) => type === "number");
  return answers.some(({ values }) => values.some((value) => !["NaN", "null", "undefined"].includes(value)));
}

// What is shown, as soon as two looks, a quarter of a second apart, find every panel answered and the same.
async function settled(page) {
  const until = Date.now() + PATIENCE;
  let before = "";
  for (;;) {
    const shown = await page.evaluate(() => window.inspected());
    const text = JSON.stringify(shown);
    const done = shown.panels.every((panel) => (panel.state === "Done" && (panel.marks || !hasData(panel))) || panel.state === "Error");
    if ((done && text === before) || Date.now() > until) return shown;
    before = text;
    await new Promise((passed) => setTimeout(passed, 250));
  }
}

function judged(model, { variables, panels }, theme, fault) {
  const meant = { ...task.source.choices, ...task.variables };
  const wanted = model.panels.flatMap((each) => (each.type === "row" ? each.panels : [each]));
  if (panels.length !== wanted.length) fault(`${panels.length} of ${wanted.length} panels are drawn`);
  for (const { name, value, error, loading } of variables) {
    const hidden = model.templating.list.find((each) => each.name === name).hide;
    if (error || loading || (!hidden && value.length === 0)) fault(`variable ${name} has no value: ${error ?? ""}`);
    if (name in meant && String(value) !== meant[name]) fault(`variable ${name} is ${value}`);
  }
  for (const panel of panels) {
    if (theme === task.themes[0]) kinds[panel.kind] = (kinds[panel.kind] ?? 0) + 1;
    const specified = wanted.find(({ title }) => title === panel.title);
    const wrong = (words) => fault(`${panel.title}: ${words}`);
    for (const error of panel.errors ?? []) wrong(error);
    if (panel.state !== "Done") { wrong(`state ${panel.state}`); continue; }
    const fields = panel.frames.flatMap(({ fields }) => fields);
    const numbers = fields.filter(({ type }) => type === "number");
    if (!hasData(panel)) wrong("no data");
    if (!panel.marks) wrong("nothing is drawn");
    for (const text of panel.cut) wrong(`${text} is cut`);
    for (const column of panel.outside) wrong(`column ${column} is out of sight`);
    units(specified, numbers, wrong);
    for (const { name, links } of fields) for (const link of links) followed(link, (words) => wrong(`link of ${name} ${words}`));
    if (panel.kind === "table") rowsAndColumns(specified, panel, wrong);
    if (panel.kind === "timeseries") legends(panel, numbers, wrong);
  }
}

// Each field has the unit that its override, or else its panel, gives it. An override of more than a color has a field.
function units({ fieldConfig, targets }, numbers, wrong) {
  const overrides = new Map(fieldConfig.overrides.map(({ matcher, properties }) => [matcher.options, Object.fromEntries(properties.map(({ id, value }) => [id, value]))]));
  for (const { name, unit, thresholds, texts } of numbers) {
    const own = overrides.get(name) ?? {};
    if (unit !== (own.unit ?? fieldConfig.defaults.unit)) wrong(`${name} has the unit ${unit}`);
    if (own.thresholds && thresholds !== own.thresholds.steps.length) wrong(`${name} has not its thresholds`);
    for (const text of texts) if (/undefined|\[object/.test(text)) wrong(`${name} is shown as ${text}`);
  }
}

function followed(link, wrong) {
  const url = new URL(link, "http://grafana/");
  if (/\$|%24|undefined|null/.test(link)) wrong(`has a variable that is not replaced: ${link}`);
  if (!uids.has(url.pathname.replace("/d/", ""))) wrong(`leads to no dashboard: ${link}`);
  for (const name of ["from", "to", "var-datasource", "var-namespace", "var-ddp_job"]) if (!url.searchParams.get(name)) wrong(`has no ${name}: ${link}`);
}

// After Grafana's own transformations: one frame, the columns as ordered, and one row for each combination of labels.
function rowsAndColumns({ transformations, fieldConfig }, { frames, columns }, wrong) {
  if (frames.length !== 1) wrong(`${frames.length} tables`);
  const { indexByName, renameByName } = transformations.find(({ id }) => id === "organize").options;
  const meant = Object.keys(indexByName).sort((a, b) => indexByName[a] - indexByName[b]).map((name) => renameByName[name]);
  const fields = frames[0]?.fields ?? [];
  const found = fields.map(({ name }) => name);
  const shown = task.isCompact ? meant.filter((name) => found.includes(name)) : meant;
  if (String(found) !== String(shown)) wrong(`the columns are ${found}, not ${shown}`);
  if (columns.length !== shown.length) wrong(`${columns.length} of ${shown.length} columns are drawn`);
  const labels = fields.filter(({ type }) => type === "string");
  const keys = Array.from({ length: frames[0]?.length ?? 0 }, (_, row) => labels.map(({ values }) => values[row]).join(" "));
  const several = keys.filter((key, at) => keys.indexOf(key) !== at);
  if (several.length) wrong(`${keys.length} rows for ${new Set(keys).size} keys: ${several[0]}`);
  for (const { matcher } of fieldConfig.overrides) if (!task.isCompact && !found.includes(matcher.options)) wrong(`the override of ${matcher.options} has no column`);
}

function legends({ legend }, numbers, wrong) {
  const names = numbers.map(({ name }) => name);
  for (const name of names) if (!name || /\{|\}|^Value/.test(name)) wrong(`a line has the name ${name}`);
  if (new Set(names).size !== names.length) wrong(`two lines have the same name: ${names}`);
  if (legend.length !== names.length || names.some((name) => !legend.includes(name))) wrong(`the legend is ${legend}, the lines are ${names}`);
}
