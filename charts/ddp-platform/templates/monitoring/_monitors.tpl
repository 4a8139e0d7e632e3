{{/* "yes" if the chart creates objects of the Prometheus operator, else empty. */}}
{{- define "ddp-platform.monitors" -}}
{{- $enabled := toString .Values.monitoring.enabled -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") (include "ddp-platform.serves-monitors" .)) -}}
yes
{{- end -}}
{{- end }}

{{- define "ddp-platform.serves-monitors" -}}
{{- if and (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule") -}}
yes
{{- end -}}
{{- end }}
