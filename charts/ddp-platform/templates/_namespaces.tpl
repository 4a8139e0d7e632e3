{{/*
The namespaces with defaults for their optional keys: `include ... | fromYaml`, then `.items`.
*/}}
{{- define "ddp-platform.namespaces" -}}
items:
{{- range .Values.namespaces }}
  - name: {{ .name }}
    create: {{ dig "create" true . }}
    keep: {{ dig "keep" true . }}
    podSecurity: {{ dig "podSecurity" "restricted" . }}
    rdma: {{ dig "rdma" false . }}
    labels: {{ dig "labels" dict . | toJson }}
    annotations: {{ dig "annotations" dict . | toJson }}
    quota: {{ merge dict (dig "quota" dict .) $.Values.quota.hard | toJson }}
{{- end }}
{{- end }}
