{{/* What is legal about a run and probably not meant, or weaker than it need be: a line each, for NOTES.txt. */}}
{{- define "ddp-job.warnings" -}}
{{- $spec := .spec }}
{{- if lt $spec.nproc $spec.gpus }}
{{- $idle := sub $spec.gpus $spec.nproc }}
- {{ $idle }} {{ ternary "GPU" "GPUs" (eq $idle 1) }} of each node will stand idle: nproc is {{ $spec.nproc }}. Leave nproc out.
{{- end }}
{{- $reference := splitList "/" $spec.image | last }}
{{- if and (not (contains "@" $reference)) (or (not (contains ":" $reference)) (hasSuffix ":latest" $reference)) }}
- The image '{{ $spec.image }}' may be another one on each node and after each restart. Name a version or a digest.
{{- end }}
{{- if and $spec.mig (gt $spec.most 1) }}
- Nodes of MIG slices ({{ $spec.mig }}) may share one GPU, and NCCL before 2.30 refuses two ranks on one. Use one node, whole GPUs, or gloo.
{{- end }}
{{- include "ddp-job.layoutWarnings" . }}
{{- range $reader := $spec.metricsFrom }}
{{- if eq $reader.text "*" }}
- Everybody who reaches the pods may read their metrics (metricsFrom: ["*"]).
{{- end }}
{{- end }}
{{- if not $spec.checkpointClaim }}
- Without a checkpointClaim each node keeps its own copy of the checkpoints: when all of them go at once, the run begins anew.
{{- end }}
{{- if and (include "ddp-job.knowsCluster" .) (eq .root.Values.podMonitor "auto") (not (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor")) }}
- The cluster serves no PodMonitor, so Prometheus will not find the run by itself. Say podMonitor: never to hear no more of it.
{{- end }}
{{- if not .root.Values.apiServers }}
- apiServers is empty, so the NetworkPolicy does not let the API server in, and 'kubectl ddp top' and 'status' may not see the ranks. Set it to the addresses of: kubectl get endpointslice kubernetes -n default
{{- end }}
{{- include "ddp-job.fabricWarnings" . }}
{{- range $name := ternary list (splitList "+" $spec.fabric) (eq $spec.fabric "none") }}
{{- range $need := (get $.fabrics.profiles $name).needs }}
{{- if and $need.isGrave (not (and $need.unless (or (hasKey $spec.env $need.unless) (hasKey $spec.secretEnv $need.unless)))) }}
- fabric {{ $spec.fabric }}: {{ $need.sentence }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Values where the fabric has others, variables that stand against it, and those that the image is too old for. */}}
{{- define "ddp-job.fabricWarnings" -}}
{{- $spec := .spec }}
{{- $said := dict }}
{{- range $name, $value := $spec.env }}{{ $_ := set $said (printf "env.%s" $name) $value }}{{ end }}
{{- range $name, $value := $spec.nodeSelector }}{{ $_ := set $said (printf "nodeSelector.%s" $name) $value }}{{ end }}
{{- with $spec.rdma }}{{ $_ := set $said "rdma" .text }}{{ end }}
{{- $set := list }}
{{- range include "ddp-job.ofMachine" . | fromJsonArray }}
{{- if .isTooNew }}
- The fabric {{ $spec.fabric }} sets {{ .name }} from NCCL {{ range $place, $part := .since }}{{ if $place }}.{{ end }}{{ $part }}{{ end }} on, and the image '{{ $spec.image }}' says {{ include "ddp-job.nccl" $ }}: it is left out. Use an image with a newer one.
{{- else }}
{{- $set = append $set .key }}
{{- if and (hasKey $said .key) (ne (get $said .key) .value) }}
- {{ .key }} is '{{ get $said .key }}', and the fabric {{ $spec.fabric }} says '{{ .value }}': {{ .reason }}. Yours is taken; leave it out, or say fabric: none.
{{- end }}
{{- end }}
{{- end }}
{{- range $fabric := ternary list (splitList "+" $spec.fabric) (eq $spec.fabric "none") }}
{{- range $name := concat (keys $spec.env) (keys $spec.secretEnv) | uniq | sortAlpha }}
{{- $isClear := hasKey $spec.env $name }}
{{- $value := get $spec.env $name | toString }}
{{- $reason := "" }}
{{- range $refusal := (get $.fabrics.profiles $fabric).refusals }}
{{- $isMeant := or (not (hasKey $refusal "value")) (and $isClear (regexMatch (get $refusal "value" | toString) $value)) }}
{{- if and (not $reason) $isMeant (regexMatch $refusal.name $name) }}{{ $reason = $refusal.reason }}{{ end }}
{{- end }}
{{- if and $reason (not (has (printf "env.%s" $name) $set)) }}
- {{ ternary (printf "%s=%s" $name $value) $name $isClear }} stands against the fabric {{ $fabric }}: {{ $reason }}. Yours is taken; leave it out, or name another fabric.
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
