// A dashboard as a page, drawn by @grafana/scenes: window.draw(...) shows one, window.inspected() describes what is shown.
import "uplot/dist/uPlot.min.css";
import React from "react";
import { createRoot } from "react-dom/client";
import { MemoryRouter } from "react-router-dom";
import { from, map } from "rxjs";
import { EventBusSrv, FieldType, LoadingState, ThemeContext, createTheme, dateTime, getFieldDisplayName, locationUtil } from "@grafana/data";
import { config, setAppEvents, setPluginImportUtils, setRunRequest } from "@grafana/runtime";
import {
  DataSourceVariable, EmbeddedScene, QueryVariable, SceneDataTransformer, SceneObjectBase, SceneQueryRunner, SceneTimePicker,
  SceneTimeRange, SceneVariableSet, TextBoxVariable, VariableValueSelectors, VizPanel,
} from "@grafana/scenes";
import { GlobalStyles } from "@grafana/ui";
import { plugins } from "./panels.jsx";
import { dataSource, settings } from "./prometheus.js";

locationUtil.initialize({ config: { appSubUrl: "" }, getTimeRangeForUrl: () => ({}), getVariablesUrlParams: () => ({}) });
config.bootData.user = { ...config.bootData.user, timezone: "utc", weekStart: "" };
setAppEvents(new EventBusSrv());
setPluginImportUtils({ importPanelPlugin: async (id) => plugins[id], getPanelPluginFromCache: (id) => plugins[id] });
setRunRequest((source, request) => from(source.query(request)).pipe(map(({ data }) => ({ state: LoadingState.Done, series: data, timeRange: request.range, request }))));

let scene;
window.draw = (model, { address, scrapeSeconds, end, seconds, choices, theme }) => {
  Object.assign(settings, { address, scrapeSeconds });
  config.theme2 = createTheme({ colors: { mode: theme } });
  const [from, to] = [end - seconds, end].map((moment) => dateTime(moment * 1000).toISOString());
  const placed = cells(model.panels);
  const body = new Grid({ cells: placed.map(({ panel, ...place }) => ({ ...place, key: panel?.state.key })), children: placed.flatMap(({ panel }) => panel ?? []) });
  scene = new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from, to, timeZone: "utc" }),
    $variables: new SceneVariableSet({ variables: model.templating.list.map((each) => variable(each, choices)) }),
    controls: [new VariableValueSelectors({}), new SceneTimePicker({})],
    body,
  });
  window.__grafanaSceneContext = scene;
  createRoot(document.getElementById("root")).render(
    <MemoryRouter><ThemeContext.Provider value={config.theme2}><GlobalStyles /><scene.Component model={scene} /></ThemeContext.Provider></MemoryRouter>,
  );
};

function variable(each, choices) {
  const common = { name: each.name, label: each.label, hide: each.hide };
  if (each.type === "datasource") return new DataSourceVariable({ ...common, pluginId: each.query, value: dataSource.uid, text: dataSource.name });
  if (each.type === "textbox") return new TextBoxVariable({ ...common, value: choices[each.name] ?? each.query });
  const chosen = each.includeAll ? { value: ["$__all"], text: ["All"] } : { value: choices[each.name] ?? "", text: choices[each.name] ?? "" };
  return new QueryVariable({
    ...common, ...chosen, datasource: each.datasource, query: each.query, refresh: each.refresh, sort: each.sort, isMulti: each.multi,
    includeAll: each.includeAll, allValue: each.allValue, defaultToAll: each.includeAll,
  });
}

// Panels at their places on Grafana's grid of 24 columns. Collapsed rows are shown open, so what is below them moves.
class Grid extends SceneObjectBase {
  static Component = ({ model }) => {
    const { cells, children } = model.useState();
    const bottom = Math.max(...cells.map(({ y, h }) => y + h));
    return <div style={{ position: "relative", width: "100%", height: bottom * 38, flexShrink: 0 }}>{cells.map(({ x, y, w, h, title, key }) => {
      const panel = children.find(({ state }) => state.key === key);
      return <div key={`${x} ${y}`} style={{ position: "absolute", left: `calc(${(x / 24) * 100}% + 4px)`, width: `calc(${(w / 24) * 100}% - 8px)`, top: y * 38, height: h * 38 - 8 }}>
        {panel ? <panel.Component model={panel} /> : <h5 style={{ lineHeight: "30px" }}>{title}</h5>}
      </div>;
    })}
    </div>;
  };
}

function cells(panels) {
  const found = [];
  let shift = 0;
  for (const each of panels) {
    found.push(cell(each, shift));
    if (each.type !== "row") continue;
    found.push(...each.panels.map((panel) => cell(panel, shift)));
    shift += each.panels.length && Math.max(...each.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) - each.gridPos.y - 1;
  }
  return found;
}

function cell(each, shift) {
  const place = { ...each.gridPos, y: each.gridPos.y + shift };
  if (each.type === "row") return { ...place, title: each.title };
  let $data = new SceneQueryRunner({ datasource: each.datasource, queries: each.targets.map((target) => ({ ...target })) });
  if (each.transformations.length) $data = new SceneDataTransformer({ $data, transformations: each.transformations });
  const { title, description, options, fieldConfig } = each;
  const panel = new VizPanel({ key: `panel-${each.id}`, pluginId: each.type, title, description, options, fieldConfig, $data });
  return { ...place, panel };
}

window.inspected = () => {
  const variables = scene.state.$variables.state.variables.map(({ state }) => ({ name: state.name, value: state.value, error: state.error ?? null, loading: Boolean(state.loading) }));
  return { variables, panels: scene.state.body.state.children.map(described) };
};

function described(panel) {
  const data = panel.state.$data.state.data;
  if (!data || !panel.getPlugin()) return { title: panel.state.title, state: "NotStarted" };
  const shown = panel.applyFieldConfig(data);
  const frames = shown.series.map((frame) => ({
    length: frame.length,
    fields: frame.fields.map((field) => ({
      name: getFieldDisplayName(field, frame, shown.series),
      source: field.name,
      type: field.type,
      unit: field.config.unit,
      thresholds: field.config.thresholds?.steps.length,
      values: field.type === FieldType.time ? [] : field.values.map(String),
      texts: field.type === FieldType.number ? field.values.slice(-3).map((value) => `${field.display(value).text}${field.display(value).suffix ?? ""}`) : [],
      links: field.config.links?.length && frame.length ? field.getLinks({ valueRowIndex: 0 }).map(({ href }) => href) : [],
    })),
  }));
  const element = document.querySelector(`[data-viz-panel-key="${panel.state.key}"]`);
  return { title: panel.state.title, kind: panel.state.pluginId, state: data.state, errors: (data.errors ?? []).map(({ message }) => message), frames, ...drawn(element, panel.state.pluginId) };
}

// What stands on the page: marks, legend, columns, and texts that do not fit.
function drawn(element, kind) {
  if (!element) return { marks: 0, legend: [], columns: [], outside: [], cut: [] };
  const all = (selector) => [...element.querySelectorAll(selector)];
  // What is there must be seen: text, or an area that has been drawn on.
  const content = element.querySelector('[data-testid="data-testid panel content"]');
  const isSeen = { timeseries: [".uplot canvas", (each) => each.width > 0], table: ['[role="row"] [role="gridcell"]', (each) => each.textContent], "state-timeline": [".lane rect", () => true], "status-history": [".lane rect", () => true] };
  const [selector, seen] = isSeen[kind] ?? [];
  const marks = selector ? all(selector).filter((each) => each.checkVisibility({ contentVisibilityAuto: true }) && seen(each)).length : content?.textContent.length ?? 0;
  const { right } = element.getBoundingClientRect();
  const headers = all('[role="columnheader"]');
  const outside = headers.filter((each) => each.getBoundingClientRect().right > right + 1).map((each) => each.textContent);
  const names = kind === "bargauge" ? [...(content?.querySelectorAll("div") ?? [])].filter((each) => each.childElementCount === 0 && each.textContent) : headers;
  const cut = names.filter(isCut).map((each) => each.textContent);
  const legend = all('[data-testid^="data-testid VizLegend series"], button[aria-label^="VizLegend"]').map((each) => each.textContent);
  return { marks, legend, columns: headers.map((each) => each.textContent), outside, cut };
}

function isCut(element) {
  const text = document.createRange();
  text.selectNodeContents(element);
  const [inner, outer] = [text, element].map((each) => each.getBoundingClientRect());
  return inner.left < outer.left - 1 || inner.right > outer.right + 1 || element.scrollWidth > element.clientWidth + 1;
}
