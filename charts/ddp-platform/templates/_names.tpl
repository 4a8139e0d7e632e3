{{/*
Names and labels. A cluster has one platform, so names of objects begin with "ddp" and do not depend on the release:
documents, roles and alerts refer to them.
*/}}

{{/* The labels of every object, without those that change with the chart's version. */}}
{{- define "ddp-platform.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
The metadata of an object: call with (dict "root" $ "name" NAME "component" COMPONENT), and "namespace", "labels" and
"annotations" where it has them.
*/}}
{{- define "ddp-platform.metadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "ddp-platform.labels" . | nindent 2 }}
{{- with merge dict (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The labels of an object: call as "ddp-platform.metadata". Labels of the chart override the user's. */}}
{{- define "ddp-platform.labels" -}}
{{- $standard := include "ddp-platform.selectorLabels" .root | fromYaml -}}
{{- $_ := set $standard "app.kubernetes.io/component" .component -}}
{{- $_ := set $standard "app.kubernetes.io/part-of" "ddp" -}}
{{- $_ := set $standard "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $standard "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $standard "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- toYaml (merge dict $standard (.labels | default dict) .root.Values.commonLabels) -}}
{{- end }}

{{/* The trainer image. */}}
{{- define "ddp-platform.image" -}}
{{- include "ddp-platform.image-of" (dict "registry" .Values.image.registry "image" .Values.image "version" .Chart.AppVersion) -}}
{{- end }}

{{/* An image: a digest overrides a tag. Call with (dict "registry" REGISTRY "image" VALUES "version" DEFAULT-TAG). */}}
{{- define "ddp-platform.image-of" -}}
{{- $repository := list .registry .image.repository | compact | join "/" -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .version }}
{{- end -}}
{{- end }}

{{/* The name of the first namespace, or the one that is given. Call with (dict "root" $ "given" NAME). */}}
{{- define "ddp-platform.namespace" -}}
{{- .given | default (first .root.Values.namespaces).name -}}
{{- end }}
