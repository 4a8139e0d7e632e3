"""Check of the dashboards, drawn by Grafana's components in a browser."""
