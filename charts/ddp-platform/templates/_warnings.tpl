{{/* Values that weaken the defaults or leave something out: one line each, for NOTES.txt. */}}
{{- define "ddp-platform.warnings" -}}
{{- range (include "ddp-platform.namespaces" . | fromYaml).items }}
{{- if ne .podSecurity "restricted" }}
- namespace {{ .name }} admits pods beyond Pod Security "restricted" (podSecurity: {{ .podSecurity }}).
{{- end }}
{{- if and .create (not .keep) }}
- namespace {{ .name }} and every job and checkpoint in it are deleted when this release is uninstalled (keep: false).
{{- end }}
{{- end }}
{{- range .Values.namespaces }}
{{- if and .quota (not $.Values.quota.enabled) }}
- the quota of namespace {{ .name }} is not enforced (quota.enabled: false).
{{- end }}
{{- end }}
{{- if not .Values.networkPolicy.enabled }}
- pods without a policy of their own can be reached by every pod of the cluster (networkPolicy.enabled: false).
{{- end }}
{{- include "ddp-platform.warnings.policies" . }}
{{- if eq (include "ddp-platform.monitors" .) "" }}
{{- if eq (toString .Values.monitoring.enabled) "auto" }}
- the cluster serves no PodMonitor and PrometheusRule, so nothing scrapes the jobs and nothing alerts. Install the
  Prometheus operator and upgrade this release, or set monitoring.enabled to false to hide this warning.
{{- end }}
{{- end }}
{{- range .Values.priorityClasses }}
{{- if .globalDefault }}
- every pod of the cluster that names no PriorityClass gets {{ .name }} (globalDefault: true).
{{- end }}
{{- end }}
{{- end }}
