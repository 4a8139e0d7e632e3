{{/*
The namespaces with every key that may be left out filled in: `include ... | fromYaml`, then `.items`.
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
