// A data source in place of @grafana/prometheus, which is under the AGPL: the answers of Prometheus as data frames.
import { FieldType, dateTime, toDataFrame } from "@grafana/data";
import { sceneGraph } from "@grafana/scenes";

export const settings = { address: "", scrapeSeconds: 15 };
export const dataSource = {
  uid: "prometheus", type: "prometheus", name: "Prometheus", meta: { id: "prometheus" },
  get interval() { return `${settings.scrapeSeconds}s`; },
  getRef: () => ({ uid: "prometheus", type: "prometheus" }),
  metricFindQuery: async (query, { scopedVars }) => {
    const [, selector, label] = /^label_values\((.*), (\w+)\)$/.exec(query.query);
    const found = await ask(`label/${label}/values`, { "match[]": filled(selector, scopedVars) });
    return found.map((text) => ({ text }));
  },
  query: async (request) => {
    const targets = request.targets.filter((target) => !target.hide);
    const answers = await Promise.all(targets.map((target) => answered(target, request)));
    const tables = targets.filter((target) => target.format === "table").length;
    return { data: targets.flatMap((target, at) => framed(target, answers[at], tables > 1)) };
  },
};

function filled(expression, scopedVars) {
  const escaped = (value) => Array.isArray(value) ? `(${value.map(escaped).join("|")})` : String(value);
  return sceneGraph.interpolate(scopedVars.__sceneObject.value.valueOf(), expression, scopedVars, escaped);
}

async function ask(path, words) {
  const answer = await (await fetch(`${settings.address}/api/v1/${path}?${new URLSearchParams(words)}`)).json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data;
}

async function answered(target, request) {
  const step = Math.max(Math.ceil(request.intervalMs / 1000), settings.scrapeSeconds);
  const [start, end] = [request.range.from, request.range.to].map((moment) => moment.valueOf() / 1000);
  const rateInterval = Math.max(step + settings.scrapeSeconds, 4 * settings.scrapeSeconds);
  const builtIn = { __rate_interval: `${rateInterval}s`, __interval: `${step}s`, __range: `${Math.round(end - start)}s` };
  const scoped = Object.fromEntries(Object.entries(builtIn).map(([name, value]) => [name, { text: value, value }]));
  const query = filled(target.expr, { ...request.scopedVars, ...scoped });
  if (/\$/.test(query.replace(/"[^"]*"/g, ""))) throw new Error(`A variable is not replaced in ${query}`);
  const data = target.instant
    ? await ask("query", { query, time: end })
    : await ask("query_range", { query, start: Math.floor(start / step) * step, end: Math.floor(end / step) * step, step });
  return data.resultType === "scalar" ? [{ metric: {}, values: [data.result] }] : data.result.map((each) => ({ ...each, values: each.values ?? [each.value] }));
}

function framed({ refId, format, legendFormat, expr }, answer, isNumbered) {
  const times = (series) => ({ name: "Time", type: FieldType.time, values: series.values.map(([moment]) => moment * 1000) });
  if (format === "table") {
    const labels = [...new Set(answer.flatMap(({ metric }) => Object.keys(metric)))].sort();
    const fields = labels.map((name) => ({ name, type: FieldType.string, config: { filterable: true }, values: answer.map(({ metric }) => metric[name] ?? "") }));
    const value = { name: isNumbered ? `Value #${refId}` : "Value", type: FieldType.number, values: answer.map(({ values }) => Number(values[0][1])) };
    return answer.length ? [toDataFrame({ refId, fields: [{ name: "Time", type: FieldType.time, values: answer.map(({ values }) => values[0][0] * 1000) }, ...fields, value] })] : [];
  }
  return answer.map((series) => {
    const legend = legendFormat === "__auto" ? "" : legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => series.metric[label] ?? "");
    const config = { displayNameFromDS: legend || (Object.keys(series.metric).length ? undefined : expr) };
    const value = { name: "Value", type: FieldType.number, labels: series.metric, config, values: series.values.map(([, number]) => Number(number)) };
    return toDataFrame({ refId, fields: [times(series), value] });
  });
}
