{{/* The newest supported version of Kueue's API that the cluster serves; empty without Kueue. */}}
{{- define "ddp-platform.kueue" -}}
{{- $served := list -}}
{{- range list "kueue.x-k8s.io/v1beta2" "kueue.x-k8s.io/v1beta1" -}}
{{- if $.Capabilities.APIVersions.Has (printf "%s/ClusterQueue" .) -}}
{{- $served = append $served . -}}
{{- end -}}
{{- end -}}
{{- with $served }}{{ first . }}{{ end -}}
{{- end }}
