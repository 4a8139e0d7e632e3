{{/* What a cluster alone can tell of the namespace of the run; nothing where none is asked. */}}

{{/* The presets that it shares, name to YAML, as JSON. */}}
{{- define "ddp-job.namespacePresets" -}}
{{- (lookup "v1" "ConfigMap" .root.Release.Namespace .c.presets.configMap).data | default dict | toJson -}}
{{- end -}}
