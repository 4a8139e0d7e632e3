// Check every page of the site with axe-core in Chromium, in light and dark mode, and that none loads from the network.
// Pictures of some pages are left in PICTURES.
// node check.mjs FOLDER CHROMIUM PICTURES
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { extname, join, resolve } from "node:path";
import puppeteer from "puppeteer-core";

const [folder, chromium, pictures] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const root = resolve(folder);
const pages = readdirSync(root, { recursive: true }).filter((name) => name.endsWith(".html")).sort();
const pictured = new Set(["index.html", "readme/index.html", "report/index.html", "dashboards/index.html", "cli/index.html"]);
const types = { ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json", ".png": "image/png", ".svg": "image/svg+xml" };
const server = createServer((request, response) => {
  try {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    if (path.startsWith("/search/")) throw new Error("left out"); // each page would index the text of all pages
    const file = join(root, path.endsWith("/") ? `${path}index.html` : path);
    const body = readFileSync(file);
    response.writeHead(200, { "content-type": types[extname(file)] ?? "application/octet-stream" }).end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const origin = `http://127.0.0.1:${server.address().port}/`;
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-gpu"], protocolTimeout: 600_000 });
let errors = 0;
mkdirSync(pictures, { recursive: true });
const loads = new Set();
// These menus are the same on every page, and longer than most of them, so those of the pictured pages are enough.
const menus = [".md-header", ".md-tabs", ".md-sidebar--primary"].map((selector) => [selector]);
// Of all rules, contrast alone depends on the scheme, and takes the longest.
const structure = { resultTypes: ["violations"], rules: { "color-contrast": { enabled: false } } };
const contrast = { resultTypes: ["violations", "incomplete"], runOnly: ["color-contrast"] };
// What colors an element: the scheme, and tags, classes and styles from the root down to it. Contrast is computed once
// for each.
const paths = new Set();

async function markUnseenText(page, scheme) {
  const found = await page.evaluate((seen, scheme) => {
    const known = new Set(seen), unseen = [];
    const walk = (element, above) => {
      const style = element.getAttribute("style") ?? "";
      const path = `${above} ${element.tagName}.${[...element.classList].sort().join(".")}${style}`;
      const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
      delete element.dataset.unseen;
      if (hasText && !known.has(path) && element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) {
        known.add(path);
        unseen.push(path);
        element.dataset.unseen = path;
      }
      for (const child of element.children) walk(child, path);
    };
    walk(document.body, scheme);
    return unseen;
  }, [...paths], scheme);
  for (const path of found) paths.add(path);
  return found.length > 0;
}

async function report(page, name, context, options) {
  const found = await page.evaluate(async (context, options) => {
    const { violations, incomplete } = await axe.run(context, options);
    const elements = incomplete.flatMap(({ nodes }) => nodes.map(({ target }) => document.querySelector(target[0])));
    return { violations, undecided: elements.map((element) => element.dataset.unseen) };
  }, context, options);
  // Of such a kind, axe may judge the next element: the first may be a single character.
  for (const path of found.undecided) paths.delete(path);
  for (const { id, help, nodes } of found.violations) {
    errors += nodes.length;
    console.log(`${name}: ${id}: ${help}: ${nodes.length} x ${nodes[0].html.slice(0, 160)}`);
  }
}

async function check(names) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  await page.setBypassCSP(true);
  await page.setViewport({ width: 1280, height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
  page.on("request", (request) => {
    if (/^(https?|wss?):/.test(request.url()) && !request.url().startsWith(origin)) loads.add(request.url());
  });
  for (const name of names) {
    await page.goto(origin + name, { waitUntil: "load", timeout: 0 });
    await page.evaluate(axe);
    await report(page, name, { include: [["html"]], exclude: pictured.has(name) ? [] : menus }, structure);
    for (const [scheme, color] of [["light", "default"], ["dark", "slate"]]) {
      await page.evaluate((color) => {
        document.body.dataset.mdColorScheme = color;
        for (const each of document.getAnimations()) if (each.effect.getComputedTiming().iterations !== Infinity) each.finish();
      }, color); // a color in between has less contrast
      if (pictured.has(name)) {
        const path = join(pictures, `${name.replace("/index.html", "").replace(".html", "")}-${scheme}.png`);
        await page.screenshot({ path, clip: { x: 0, y: 0, width: 1280, height: 1800 }, captureBeyondViewport: true });
      }
      if (await markUnseenText(page, scheme)) await report(page, `${name} (${scheme})`, "[data-unseen]", contrast);
    }
  }
}
// Two pages at a time, each in a process of its own.
const half = Math.ceil(pages.length / 2);
await Promise.all([check(pages.slice(0, half)), check(pages.slice(half))]);
await browser.close();
server.close();
for (const url of loads) console.log(`loaded from the network: ${url}`);
console.log(`${pages.length} pages in light and dark mode: ${errors} accessibility errors, ${loads.size} network loads`);
process.exit(errors || loads.size ? 1 : 0);
