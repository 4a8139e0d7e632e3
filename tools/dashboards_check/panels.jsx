// Panel plugins around the components of @grafana/ui. Grafana's own plugins are part of its server and not in npm.
import React from "react";
import {
  FieldColorModeId, FieldType, PanelPlugin, VizOrientation, cacheFieldDisplayNames, dataLinksOverrideProcessor, displayNameOverrideProcessor, getDisplayValueAlignmentFactors,
  getFieldDisplayName, getFieldDisplayValues, identityOverrideProcessor, numberOverrideProcessor, standardEditorsRegistry,
  standardFieldConfigEditorRegistry, standardTransformers, standardTransformersRegistry, stringOverrideProcessor,
  thresholdsOverrideProcessor, unitOverrideProcessor, valueMappingsOverrideProcessor,
} from "@grafana/data";
import { BarGauge, BigValue, TimeSeries, VizRepeater, preparePlotFrame, useTheme2 } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";

const STANDARD = {
  unit: unitOverrideProcessor, min: numberOverrideProcessor, max: numberOverrideProcessor, decimals: numberOverrideProcessor,
  displayName: displayNameOverrideProcessor, noValue: stringOverrideProcessor, color: identityOverrideProcessor,
  links: dataLinksOverrideProcessor, mappings: valueMappingsOverrideProcessor, thresholds: thresholdsOverrideProcessor,
};
const CUSTOM = [
  "align", "axisPlacement", "axisSoftMin", "cellOptions", "drawStyle", "fillOpacity", "filterable", "inspect", "lineStyle",
  "lineWidth", "minWidth", "showPoints", "spanNulls", "stacking", "thresholdsStyle", "width",
];
const shared = { name: "", editor: () => null, override: () => null, shouldApply: () => true, settings: {} };
standardEditorsRegistry.setInit(() => []);
standardFieldConfigEditorRegistry.setInit(() => Object.entries(STANDARD).map(([id, process]) => ({ ...shared, id, path: id, process })));
standardTransformersRegistry.setInit(() => ["merge", "filterFieldsByName", "organize"].map((id) => {
  const transformation = Object.values(standardTransformers).find((each) => each.id === id);
  return { id, name: id, transformation: async () => transformation };
}));

// Joined fields keep their names: the color of a line depends on its name, and the legend reads the fields as they were.
function joined(frames, ...rest) {
  cacheFieldDisplayNames(frames);
  const names = frames.flatMap((frame) => frame.fields.filter(({ type }) => type === FieldType.number).map(({ state }) => state.displayName));
  const found = preparePlotFrame(frames, ...rest);
  cacheFieldDisplayNames(frames);
  found?.fields.slice(1).forEach((field, at) => Object.assign(field, { state: { ...field.state, displayName: names[at] } }));
  return found;
}

function TimeSeriesPanel({ data, width, height, timeRange, timeZone, options }) {
  return data.series.length === 0 ? null : <TimeSeries frames={data.series} preparePlotFrame={joined} width={width} height={height} timeRange={timeRange} timeZone={timeZone} legend={options.legend} options={options} />;
}

function repeated(draw) {
  return function Repeated({ data, width, height, options, fieldConfig, replaceVariables, renderCounter, timeZone }) {
    const theme = useTheme2();
    const values = () => getFieldDisplayValues({ fieldConfig, reduceOptions: options.reduceOptions, replaceVariables, theme, data: data.series, sparkline: false, timeZone });
    const orientation = options.orientation === "auto" ? (draw === stat && width > height ? VizOrientation.Vertical : VizOrientation.Horizontal) : options.orientation;
    return <VizRepeater getValues={values} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={(each) => draw({ ...each, options, theme })} width={width} height={height}
      source={data} itemSpacing={draw === bar ? 10 : 3} renderCounter={renderCounter} orientation={orientation} autoGrid={options.orientation === "auto"}
      minVizHeight={options.minVizHeight} minVizWidth={options.minVizWidth} maxVizHeight={options.maxVizHeight} />;
  };
}
const stat = ({ value, alignmentFactors, width, height, count, options, theme }) =>
  <BigValue value={value.display} alignmentFactors={alignmentFactors} width={width} height={height} theme={theme} count={count}
    colorMode={options.colorMode} graphMode={options.graphMode} justifyMode={options.justifyMode} textMode={options.textMode} wideLayout={options.wideLayout} />;
const bar = ({ value, alignmentFactors, width, height, orientation, options, theme }) =>
  <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} alignmentFactors={alignmentFactors} width={width}
    height={height} theme={theme} orientation={orientation} itemSpacing={10} displayMode={options.displayMode} showUnfilled={options.showUnfilled}
    valueDisplayMode={options.valueMode} namePlacement={options.namePlacement} text={options.text} lcdCellWidth={12} />;

function TablePanel({ data, width, height, options, fieldConfig, timeRange, replaceVariables }) {
  const [sortBy, setSortBy] = React.useState(options.sortBy);
  cacheFieldDisplayNames(data.series); // cells are found by these names
  return data.series.length === 0 ? null : <TableNG data={data.series[options.frameIndex] ?? data.series[0]} width={width} height={height} cellHeight={options.cellHeight}
    sortBy={sortBy} onSortByChange={setSortBy} fieldConfig={fieldConfig} timeRange={timeRange} replaceVariables={replaceVariables} getActions={() => []}
    enableVirtualization={false} contentAwareWidthsEnabled={false} noHeader={!options.showHeader} structureRev={data.structureRev} />;
}

// state-timeline and status-history are not in npm: a drawing of our own, with Grafana's names and colors.
function LanesPanel({ data, width, height, timeRange }) {
  const [start, end] = [timeRange.from.valueOf(), timeRange.to.valueOf()];
  const tall = Math.min(24, height / Math.max(1, data.series.length));
  const rows = data.series.map((frame, lane) => {
    const [times, field] = frame.fields;
    return <g key={lane} className="lane" transform={`translate(0 ${lane * tall})`}>
      <text x={100} y={tall / 2 + 4} textAnchor="end" fill="currentColor" fontSize={12}>{getFieldDisplayName(field, frame, data.series)}</text>
      {times.values.map((moment, at) => {
        const shown = field.display(field.values[at]);
        const until = times.values[at + 1] ?? end;
        return <rect key={at} x={110 + (width - 110) * (moment - start) / (end - start)} y={1} width={Math.max(0, (width - 110) * (until - moment) / (end - start))} height={tall - 2} fill={shown.color} />;
      })}
    </g>;
  });
  if (width < 200) return null; // before the page has been measured
  return <svg width={width} height={height}>{rows}</svg>;
}

const COMPONENTS = { timeseries: TimeSeriesPanel, stat: repeated(stat), bargauge: repeated(bar), table: TablePanel, "state-timeline": LanesPanel, "status-history": LanesPanel };
export const plugins = Object.fromEntries(Object.entries(COMPONENTS).map(([id, component]) => {
  const plugin = new PanelPlugin(component);
  const useCustomConfig = (builder) => CUSTOM.forEach((name) => builder.addCustomEditor({ ...shared, id: name, path: name, process: identityOverrideProcessor }));
  plugin.useFieldConfig({ useCustomConfig, standardOptions: { color: { defaultValue: { mode: FieldColorModeId.Thresholds } } } });
  plugin.meta = { id, name: id, type: "panel", module: "", baseUrl: "", info: { author: { name: "" }, description: "", links: [], logos: { large: "", small: "" }, screenshots: [], updated: "", version: "" } };
  return [id, plugin];
}));
