{{/* The list of objects that a run becomes, as the plugin's render makes it. */}}
{{- define "ddp-job.objects" -}}
{{- include "ddp-job.presence" . -}}
{{- include "ddp-job.served" . -}}
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
{{- if not .root.Values.runSecret }}
{{- include "ddp-job.runSecret" . }}
{{- end }}
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

{{/* Stops where the cluster lacks what the run needs: Helm would say so too, but not the way out; and Kueue it would not miss. */}}
{{- define "ddp-job.served" -}}
{{- if include "ddp-job.knowsCluster" . -}}
{{- $needed := list (dict "apiVersion" .engine.apiVersion "kind" .engine.kind) -}}
{{- range .c.gangs.served -}}
{{- if eq .gang $.together.group -}}{{- $needed = append $needed . -}}{{- end -}}
{{- end -}}
{{- if .added.computeDomain -}}{{- $needed = append $needed (dict "apiVersion" "resource.nvidia.com/v1beta1" "kind" "ComputeDomain") -}}{{- end -}}
{{- if .added.claim -}}{{- $needed = append $needed (dict "apiVersion" "resource.k8s.io/v1" "kind" "ResourceClaimTemplate") -}}{{- end -}}
{{- range $needed -}}
{{- if and (ne .kind "Job") (not ($.root.Capabilities.APIVersions.Has (printf "%s/%s" .apiVersion .kind))) -}}
{{- fail (printf "The cluster does not know %s (%s). %s" .kind .apiVersion (get $.c.providers .kind)) -}}
{{- end -}}
{{- end -}}
{{- $hasKueue := false -}}
{{- range .c.kueueVersions -}}{{- if $.root.Capabilities.APIVersions.Has . -}}{{- $hasKueue = true -}}{{- end -}}{{- end -}}
{{- if and .isKueues (not $hasKueue) -}}
{{- fail (printf "The queue '%s' is Kueue's, and the cluster has no Kueue: nobody would ever let the run begin. Install Kueue, or leave queue out." .spec.queue) -}}
{{- end -}}
{{- end -}}
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
