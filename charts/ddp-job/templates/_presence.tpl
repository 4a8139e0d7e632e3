{{/* What of the run is there already: an upgrade leaves it as it is, or stops. */}}

{{- define "ddp-job.presence" -}}
{{- $_ := set . "suspended" .isKueues -}}
{{- $_ := set . "nodes" .spec.most -}}
{{- $_ := set . "rendered" (include "ddp-job.rendered" .) -}}
{{- end -}}

{{/* Digest of all that cannot be changed while the run is there. */}}
{{- define "ddp-job.rendered" -}}
{{- $fixed := list (include "ddp-job.rootSpec" . | fromYaml) (include "ddp-job.storeSpec" . | fromYaml) -}}
{{- if eq .engine.name "trainjob" -}}{{- $fixed = append $fixed (include "ddp-job.runtimeSpec" . | fromYaml) -}}{{- end -}}
{{- toJson $fixed | sha256sum -}}
{{- end -}}
