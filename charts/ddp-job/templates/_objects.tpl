{{/* The list of objects that a run becomes, as the plugin's render makes it. */}}
{{- define "ddp-job.objects" -}}
{{- include "ddp-job.presence" . -}}
{{- $annotations := dict .c.annotation.DIGEST .digest .c.annotation.SPEC .document .c.renderedAnnotation .rendered -}}
{{- if eq .engine.name "trainjob" }}
{{- include "ddp-job.runtime" . }}
{{- end }}
---
apiVersion: {{ .engine.apiVersion }}
kind: {{ .engine.kind }}
metadata:
  name: {{ toJson .spec.name }}
  {{- with .spec.namespace }}
  namespace: {{ toJson . }}
  {{- end }}
  labels: {{ include "ddp-job.labels" (dict "job" .) | fromJson | merge (dict) .together.labels | toJson }}
  annotations: {{ merge $annotations .together.annotations | toJson }}
spec:
  {{- include "ddp-job.rootSpec" . | nindent 2 }}
{{- if .code }}
{{- include "ddp-job.codeMap" . }}
{{- end }}
{{- include "ddp-job.group" . }}
{{- if .added.computeDomain }}
{{- include "ddp-job.computeDomain" . }}
{{- end }}
{{- if .added.claim }}
{{- include "ddp-job.claimTemplate" . }}
{{- end }}
{{- if .engine.hasSubdomain }}
{{- include "ddp-job.nodesService" . }}
{{- end }}
{{- include "ddp-job.storeJob" . }}
{{- include "ddp-job.storeService" . }}
{{- include "ddp-job.networkPolicy" . }}
{{- include "ddp-job.podMonitor" . }}
{{- end -}}

{{/* What readers of YAML would fold or refuse, written as escapes: it stands within quotes wherever it stands. */}}
{{- define "ddp-job.escaped" -}}
{{- $text := . -}}
{{- if regexMatch "[\\x{7f}-\\x{9f}\\x{feff}\\x{fffe}\\x{ffff}]" $text -}}
{{- range concat (untilStep 127 160 1) (list 65279 65534 65535) -}}
{{- $text = replace (printf "%c" .) (printf "\\u%04x" .) $text -}}
{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}
