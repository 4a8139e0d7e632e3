{{/*
The groups of a rule file, with the settings of monitoring.rules in its alerts. Call with (dict "root" $ "path" PATH).
Braces in a file are Prometheus' templates; the chart replaces only ${threshold}.
*/}}
{{- define "ddp-platform.rules" -}}
{{- $file := .root.Files.Get .path | fromYaml -}}
{{- range $group := $file.groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $settings := get $.root.Values.monitoring.rules.alerts (get $rule "alert") | default dict -}}
{{- if not $settings -}}
{{- $rules = append $rules $rule -}}
{{- else if $settings.enabled -}}
{{- $rules = append $rules (include "ddp-platform.alert" (dict "root" $.root "rule" $rule "settings" $settings) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $group "rules" $rules -}}
{{- end -}}
{{- toYaml $file -}}
{{- end }}

{{- define "ddp-platform.alert" -}}
{{- $rules := .root.Values.monitoring.rules -}}
{{- $name := .rule.alert -}}
{{- if ne (contains "${threshold}" .rule.expr) (hasKey .settings "threshold") -}}
{{- fail (printf "monitoring.rules.alerts.%s: %s." $name (ternary "has no threshold; leave it out" "needs a threshold, as values.yaml has one" (hasKey .settings "threshold"))) -}}
{{- end -}}
{{- $threshold := toString .settings.threshold -}}
{{- $isWindow := contains "${threshold}s]" .rule.expr -}}
{{- if and $isWindow (not (regexMatch "^[1-9][0-9]*$" $threshold)) -}}
{{- fail (printf "monitoring.rules.alerts.%s: its threshold is in whole seconds, 1 to 999999, and %s is not" $name $threshold) -}}
{{- end -}}
alert: {{ $name }}
expr: {{ .rule.expr | replace "${threshold}" $threshold | toJson }}
for: {{ .settings.for }}
labels:
  {{- toYaml (merge (dict "severity" .settings.severity) $rules.alertLabels) | nindent 2 }}
annotations:
  {{- range $key, $text := .rule.annotations }}
  {{ $key }}: {{ $text | replace "${threshold}" $threshold | toJson }}
  {{- end }}
  runbook_url: {{ printf "%s/%s.md" (trimSuffix "/" $rules.runbooks) $name | toJson }}
  {{- with .root.Values.monitoring.dashboards.url }}
  dashboard_url: {{ print (trimSuffix "/" .) (include "ddp-platform.dashboard-of" $.rule.annotations.description) | toJson }}
  {{- end }}
{{- end }}

{{/* The dashboard of an alert, with the job or rank selected that the alert's description names. */}}
{{- define "ddp-platform.dashboard-of" -}}
{{- $job := "var-namespace={{ $labels.namespace }}&var-ddp_job={{ $labels.ddp_job }}" -}}
{{- if not (contains "$labels.ddp_job" .) -}}
/d/ddp-fleet?var-namespaces={{ "{{ $labels.namespace }}" }}
{{- else if contains "$labels.rank" . -}}
/d/ddp-ranks?{{ $job }}&var-rank={{ "{{ $labels.rank }}" }}
{{- else if contains "$labels.pod" . -}}
/d/ddp-ranks?{{ $job }}
{{- else -}}
/d/ddp-job?{{ $job }}
{{- end -}}
{{- end }}
