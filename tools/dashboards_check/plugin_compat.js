// In place of @grafana/plugin-compat/datasources, which asks a Grafana server.
import { dataSource } from "./prometheus.js";

const listed = { uid: dataSource.uid, type: dataSource.type, name: dataSource.name, meta: dataSource.meta, isDefault: true };
export const getDataSourceInstance = async () => dataSource;
export const getDataSourceInstanceList = async () => [listed];
export const getDataSourceInstanceSettings = async () => listed;
export const getDefaultDataSourceInstanceListItem = async () => listed;
export const registerRuntimeDataSourceInstance = () => {};
