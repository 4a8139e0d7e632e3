{{/* What is legal about a run and probably not meant, or weaker than it need be: a line each, for NOTES.txt. */}}
{{- define "ddp-job.warnings" -}}
{{- $spec := .spec }}
{{- range $name, $value := $spec.env }}
{{- if and $value (or (regexMatch $.c.secret.name $name) (regexMatch $.c.secret.value $value)) }}
- The value of {{ $name }} looks like a secret, and everyone who may read the job can read it. Keep it in a Secret: secretEnv: {{ printf "{%s: SECRET:KEY}" $name }}.
{{- end }}
{{- end }}
{{- if lt $spec.nproc $spec.gpus }}
- {{ sub $spec.gpus $spec.nproc }} of {{ $spec.gpus }} GPUs of each node will stand idle: nproc is {{ $spec.nproc }}. Leave nproc out.
{{- end }}
{{- $reference := splitList "/" $spec.image | last }}
{{- if and (not (contains "@" $reference)) (or (not (contains ":" $reference)) (hasSuffix ":latest" $reference)) }}
- The image '{{ $spec.image }}' may be another one on each node and after each restart. Name a version or a digest.
{{- end }}
{{- if and $spec.mig (gt $spec.most 1) }}
- Nodes of MIG slices ({{ $spec.mig }}) may share one GPU, and NCCL refuses two ranks on one. Use one node, whole GPUs, or gloo.
{{- end }}
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
- apiServers is empty, so the NetworkPolicy does not let the API server in, and 'kubectl ddp top' and 'status' may not see the ranks. Set it to the addresses of: kubectl get endpointslices -n default -l kubernetes.io/service-name=kubernetes
{{- end }}
{{- range $name := ternary list (splitList "+" $spec.fabric) (eq $spec.fabric "none") }}
{{- range $need := (get $.fabrics.profiles $name).needs }}
{{- if and $need.isGrave (not (and $need.unless (or (hasKey $spec.env $need.unless) (hasKey $spec.secretEnv $need.unless)))) }}
- fabric {{ $spec.fabric }}: {{ $need.sentence }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
