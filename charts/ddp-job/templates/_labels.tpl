{{/* Names and labels. Selectors and pods have the plugin's own; only the objects themselves say that Helm has made them. */}}

{{- define "ddp-job.selector" -}}
{{- $labels := dict .job.c.label.JOB .job.spec.name -}}
{{- with .role -}}{{- $_ := set $labels $.job.c.label.ROLE . -}}{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/* Labels of pods. */}}
{{- define "ddp-job.podLabels" -}}
{{- $own := dict .job.c.label.RUN_ID .job.runId .job.c.label.MANAGED_BY .job.c.manager -}}
{{- include "ddp-job.selector" . | fromJson | merge $own | toJson -}}
{{- end -}}

{{/* Labels of objects. */}}
{{- define "ddp-job.labels" -}}
{{- $root := .job.root -}}
{{- $standard := dict .job.c.label.MANAGED_BY $root.Release.Service "app.kubernetes.io/name" $root.Chart.Name "app.kubernetes.io/instance" $root.Release.Name "app.kubernetes.io/version" $root.Chart.AppVersion "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- include "ddp-job.podLabels" . | fromJson | merge $standard | toJson -}}
{{- end -}}

{{- define "ddp-job.metadata" -}}
name: {{ .name }}
{{- with .job.spec.namespace }}
namespace: {{ toJson . }}
{{- end }}
labels: {{ include "ddp-job.labels" . }}
{{- end -}}
